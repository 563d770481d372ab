//! The page of the measurements: one HTML file with bars, which needs no network, light and dark.

use zarrs_cuda_convert::words::bytes_text;

use super::{Case, Circumstances};

const STYLE: &str = "\
:root{color-scheme:light dark;--ours:#1769aa;--other:#9a9a9a;--text:#1c1c1c;--back:#fff}\
@media(prefers-color-scheme:dark){:root{--ours:#5db3f5;--other:#808080;--text:#e6e6e6;--back:#161616}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--text);background:var(--back);max-width:52rem;\
margin:2rem auto;padding:0 1rem}h2{font-size:1.05rem;margin:1.6rem 0 .2rem}\
table{width:100%;border-collapse:collapse}th{width:11rem;padding-right:.5rem;text-align:left;font-weight:normal}\
td,th{padding-top:.1rem;padding-bottom:.1rem;padding-left:0;white-space:nowrap;font-size:.9rem}\
td span{display:inline-block;vertical-align:middle;height:1.2rem;margin-right:.4rem;\
width:calc((100% - 6rem) * var(--share))}\
.ours{background:var(--ours)}.other{background:var(--other)}\
@media(max-width:30rem){th{width:9rem}}";

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
    let bars = case.by.iter().map(|(who, seconds)| {
        let rate = Case::rate(*seconds, bytes);
        let class = if who.starts_with("ours") { "ours" } else { "other" };
        format!(
            "<tr><th scope=\"row\">{}</th><td><span class=\"{class}\" style=\"--share:{:.4}\"></span>\
             {rate:.2} GB/s</td></tr>\n",
            escaped(who),
            rate / most,
        )
    });
    let codec = match case.codec {
        "none" => "no codec",
        codec => codec,
    };
    format!(
        "<h2>{}, {}</h2>\n<table>\n{}</table>\n",
        escaped(case.work),
        escaped(codec),
        bars.collect::<String>()
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
