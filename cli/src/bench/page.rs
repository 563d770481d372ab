//! The measurements as a page: one file, bars, no network, light and dark.

use super::{Case, Circumstances};
use crate::progress::bytes_text;

const STYLE: &str = "\
:root{color-scheme:light dark;--ours:#1769aa;--other:#9a9a9a;--text:#1c1c1c;--back:#fff}\
@media(prefers-color-scheme:dark){:root{--ours:#5db3f5;--other:#808080;--text:#e6e6e6;--back:#161616}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--text);background:var(--back);max-width:52rem;\
margin:2rem auto;padding:0 1rem}text{fill:var(--text);font:13px system-ui,sans-serif}\
.ours{fill:var(--ours)}.other{fill:var(--other)}h2{font-size:1.05rem;margin:1.6rem 0 .2rem}";

/// The heights and widths of a plot.
const BAR: usize = 22;
const LABEL: usize = 180;
const WIDTH: usize = 760;

pub(super) fn page(circumstances: &Circumstances, cases: &[Case]) -> String {
    let rates = cases.iter().flat_map(|case| {
        let rate = |(_, seconds): &(&str, f64)| Case::rate(*seconds, circumstances.bytes);
        case.by.iter().map(rate).collect::<Vec<_>>()
    });
    let most = rates.fold(0.0_f64, f64::max).max(1e-9);
    let plots: String = cases
        .iter()
        .map(|case| plot(case, circumstances.bytes, most))
        .collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>zarrs-cuda bench</title>\
         <style>{STYLE}</style>\n<h1>zarrs-cuda bench</h1>\n<p>{}<br>{} threads, {} in {}, median of \
         {}<br>zarrs-cuda {}, commit {}. Longer bars are faster; all have one scale.</p>\n{plots}</html>\n",
        escaped(&circumstances.machine),
        circumstances.threads,
        bytes_text(circumstances.bytes),
        escaped(&circumstances.folder),
        circumstances.rounds,
        env!("CARGO_PKG_VERSION"),
        env!("ZARRS_CUDA_COMMIT"),
    )
}

fn plot(case: &Case, bytes: u64, most: f64) -> String {
    let bars: Vec<_> = case
        .by
        .iter()
        .enumerate()
        .map(|(row, (who, seconds))| {
            let rate = Case::rate(*seconds, bytes);
            #[allow(clippy::cast_precision_loss, reason = "places in a picture")]
            let width = rate / most * (WIDTH - LABEL - 80) as f64;
            let class = if who.starts_with("ours") { "ours" } else { "other" };
            let (top, base) = (row * BAR, row * BAR + 15);
            #[allow(clippy::cast_precision_loss, reason = "places in a picture")]
            let end = LABEL as f64 + width + 6.0;
            format!(
                "<text x=\"0\" y=\"{base}\">{}</text><rect class=\"{class}\" x=\"{LABEL}\" y=\"{top}\" \
                 width=\"{width:.1}\" height=\"{}\"/><text x=\"{end:.1}\" y=\"{base}\">{rate:.2} GB/s\
                 </text>",
                escaped(who),
                BAR - 4,
            )
        })
        .collect();
    let bars = bars.concat();
    format!(
        "<h2>{}, {}</h2>\n<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\">{bars}</svg>\n",
        escaped(case.work),
        escaped(case.codec),
        case.by.len() * BAR
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
