//! Draws a chart of ratios as SVG: bars that begin at 1, on a logarithmic axis.

use std::fmt::Write as _;

use super::chart::{Bar, Chart};
use super::{CHARTS, MARK};
use crate::svg::escaped;

const WIDTH: f64 = 800.0;
/// The place of the axis. The labels are left of it, and the longest bar's text is right of it.
const AXIS: [f64; 2] = [290.0, 700.0];
const BAR: f64 = 11.0;
const AXIS_CAPTION: &str =
    "Right of the line at 1 zarrs_cuda is faster, left of it slower. The axis is logarithmic.";
const TICKS: [f64; 17] = [
    0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0,
    1000.0,
];

/// Colours of series in light and dark, which people with other colour vision tell apart.
const COLOURS: [[&str; 2]; 5] = [
    ["#0072b2", "#56b4e9"],
    ["#d55e00", "#f0803c"],
    ["#00855f", "#2fbf8f"],
    ["#b0568a", "#d98fb8"],
    ["#6e7781", "#a0a8b0"],
];

/// Returns the drawing.
pub(super) fn draw(chart: &Chart) -> String {
    let scale = Scale::new(chart);
    let mut body = String::new();
    let mut y = 30.0;
    text(&mut body, 16.0, y, "title", &chart.title);
    y += 26.0;
    y = legend(&mut body, chart, y) + 26.0;
    let top = y - 4.0;
    let mut bars = String::new();
    for section in &chart.sections {
        y += 12.0;
        text(&mut bars, 16.0, y, "heading", &section.heading);
        y += 10.0;
        for group in &section.groups {
            let height = BAR * to_f64(group.bars.len());
            text(&mut bars, 28.0, y + height / 2.0 + 4.5, "", &group.label);
            for bar in &group.bars {
                draw_bar(&mut bars, &scale, bar, y);
                y += BAR;
            }
            y += 9.0;
        }
    }
    for tick in scale.ticks() {
        let x = scale.x(tick);
        let class = if is_one(tick) { "one" } else { "grid" };
        let _ = writeln!(
            body,
            "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top:.1}\" y2=\"{y:.1}\"/>"
        );
        let label = if is_one(tick) {
            "1 = as fast".to_owned()
        } else {
            format!("{tick}×")
        };
        text(&mut body, x, y + 16.0, "tick", &label);
    }
    body.push_str(&bars);
    y += 40.0;
    for caption in std::iter::once(AXIS_CAPTION).chain(chart.captions.iter().map(String::as_str)) {
        text(&mut body, 16.0, y, "caption", caption);
        y += 17.0;
    }
    document(chart, y + 4.0, &body)
}

/// Returns the whole file around `body`.
fn document(chart: &Chart, height: f64, body: &str) -> String {
    let mut light = String::new();
    let mut dark = String::new();
    for (series, [in_light, in_dark]) in COLOURS.iter().enumerate().take(chart.series.len()) {
        let _ = writeln!(light, ".s{series}{{fill:{in_light};stroke:{in_light}}}");
        let _ = writeln!(dark, ".s{series}{{fill:{in_dark};stroke:{in_dark}}}");
    }
    let [title, description] = [&chart.title, &chart.description].map(|text| escaped(text));
    format!(
        "\
<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\">
<!-- {MARK} from {CHARTS}: do not edit. -->
<title>{title}</title>
<desc>{description}</desc>
<style>
text{{font:13px system-ui,-apple-system,\"Segoe UI\",Helvetica,Arial,sans-serif;fill:#1f2328}}
.title{{font-size:17px;font-weight:600}}
.heading{{font-weight:600}}
.tick{{text-anchor:middle;font-size:12px;fill:#59636e}}
.value{{font-size:11px}}
.caption{{font-size:12px;fill:#59636e}}
.back{{fill:#ffffff}}
.grid{{stroke:#d1d9e0;stroke-width:1}}
.one{{stroke:#1f2328;stroke-width:1.5}}
.whisker{{stroke:#1f2328;stroke-width:1.3;fill:none}}
.single{{fill-opacity:.25}}
{light}@media (prefers-color-scheme:dark){{
text{{fill:#e6edf3}}
.tick,.caption{{fill:#9198a1}}
.back{{fill:#0d1117}}
.grid{{stroke:#3d444d}}
.one,.whisker{{stroke:#e6edf3}}
{dark}}}
</style>
<rect class=\"back\" width=\"{WIDTH}\" height=\"{height:.0}\"/>
{body}</svg>
"
    )
}

/// Draws the legend at `y`, and returns where its last line is.
fn legend(body: &mut String, chart: &Chart, mut y: f64) -> f64 {
    let mut x = 16.0;
    for (series, name) in chart.series.iter().enumerate() {
        let _ = writeln!(
            body,
            "<rect class=\"s{series}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"12\" height=\"10\"/>",
            y - 10.0
        );
        text(body, x + 18.0, y, "", name);
        // Fonts differ. The widest letters of the legend are some seven pixels wide.
        x += 42.0 + 7.0 * to_f64(name.chars().count());
    }
    let bars = || {
        let groups = chart.sections.iter().flat_map(|section| &section.groups);
        groups.flat_map(|group| &group.bars)
    };
    if bars().any(|bar| bar.single) {
        x = 16.0;
        y += 18.0;
        let _ = writeln!(
            body,
            "<rect class=\"s0 single\" x=\"{x:.1}\" y=\"{:.1}\" width=\"12\" height=\"10\"/>",
            y - 10.0
        );
        text(
            body,
            x + 18.0,
            y,
            "",
            "pale, of any colour: one run, whose spread is not known",
        );
    }
    y
}

fn draw_bar(body: &mut String, scale: &Scale, bar: &Bar, y: f64) {
    let (one, end) = (scale.x(1.0), scale.x(bar.ratio));
    let series = bar.series;
    let class = if bar.single {
        format!("s{series} single")
    } else {
        format!("s{series}")
    };
    let _ = writeln!(
        body,
        "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
        one.min(end),
        y + 1.0,
        (one - end).abs(),
        BAR - 2.5
    );
    let mut right = one.max(end);
    if let Some([low, high]) = bar.interval {
        let (low, high) = (scale.x(low), scale.x(high));
        let (middle, top, bottom) = (y + BAR / 2.0 - 0.2, y + 2.0, y + BAR - 2.5);
        let _ = writeln!(
            body,
            "<path class=\"whisker\" d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {top:.1}V{bottom:.1}\
             M{high:.1} {top:.1}V{bottom:.1}\"/>"
        );
        right = right.max(high);
    }
    text(body, right + 5.0, y + BAR - 2.0, "value", &bar.text);
}

/// A logarithmic axis.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    /// Returns the axis between the nearest ticks around all bars.
    fn new(chart: &Chart) -> Self {
        let mut low: f64 = 0.5;
        let mut high: f64 = 2.0;
        for section in &chart.sections {
            for bar in section.groups.iter().flat_map(|group| &group.bars) {
                let [least, most] = bar.interval.unwrap_or([bar.ratio; 2]);
                low = low.min(least);
                high = high.max(most);
            }
        }
        let below = TICKS.iter().rev().find(|tick| **tick <= low);
        let above = TICKS.iter().find(|tick| **tick >= high);
        Self {
            low: below.copied().unwrap_or(TICKS[0]),
            high: above.copied().unwrap_or(high),
        }
    }

    /// Returns the place of a ratio. A ratio below the axis is at its beginning.
    fn x(&self, ratio: f64) -> f64 {
        let share = (ratio.max(self.low) / self.low).ln() / (self.high / self.low).ln();
        AXIS[0] + share * (AXIS[1] - AXIS[0])
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let range = self.low..=self.high;
        // Labels of a long axis have no room for more.
        let powers_of_ten = self.high / self.low > 1000.0;
        TICKS.into_iter().filter(move |tick| {
            let is_power = (tick.log10() - tick.log10().round()).abs() < 1e-9;
            range.contains(tick) && (is_power || !powers_of_ten)
        })
    }
}

fn is_one(tick: f64) -> bool {
    (tick - 1.0).abs() < 1e-9
}

fn to_f64(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::from(u32::MAX), f64::from)
}

fn text(body: &mut String, x: f64, y: f64, class: &str, content: &str) {
    let class = match class {
        "" => String::new(),
        class => format!(" class=\"{class}\""),
    };
    let content = escaped(content);
    let _ = writeln!(
        body,
        "<text{class} x=\"{x:.1}\" y=\"{y:.1}\">{content}</text>"
    );
}
