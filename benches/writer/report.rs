//! The report of one case.

use serde_json::{Value, json};
use zarrs_cuda::writer::WriterReport;
use zarrs_cuda_benches::clock::Cost;
use zarrs_cuda_benches::goals::Goals;
use zarrs_cuda_benches::median;

use crate::contender::{Case, Sink};

/// The measurements of one case, by round.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) ours: Vec<Cost>,
    pub(crate) zarrs: Vec<Cost>,
    /// Empty if there are no files.
    pub(crate) plain: Vec<Cost>,
}

pub(crate) fn print_head() {
    println!(
        "{:10} {:>8} {:10} {:6} {:>9} {:>10} {:>10} {:>7} {:>8} {:>6} {:>5} {:>5}   of ours: {:>7} {:>8} {:>7}",
        "chain",
        "subchunk",
        "sink",
        "device",
        "ours GB/s",
        "zarrs GB/s",
        "plain GB/s",
        "x zarrs",
        "x plain",
        "packed",
        "cpu s",
        "zarrs",
        "waited",
        "encoding",
        "storing"
    );
}

/// Prints a row of medians, compares it with the goals, and returns it. `report` is from the last
/// round.
pub(crate) fn row(
    case: &Case<'_>,
    measured: &Measured,
    report: &WriterReport,
    goals: &mut Goals,
) -> Option<Value> {
    let gigabytes = case.frames.bytes() as f64 / 1e9;
    let rate = |costs: &[Cost]| Some(gigabytes / median(costs.iter().map(|cost| cost.seconds))?);
    let cpu = |costs: &[Cost]| median(costs.iter().filter_map(|cost| cost.cpu_seconds));
    let (ours, zarrs) = (rate(&measured.ours)?, rate(&measured.zarrs)?);
    let plain = rate(&measured.plain);
    let ratio = ours / zarrs;
    let of_plain = plain.map(|plain| ours / plain);
    let seconds = [report.waiting, report.encoding, report.storing].map(|time| time.as_secs_f64());
    let [waiting, encoding, storing] = seconds;
    let text = |value: Option<f64>| value.map_or("-".to_string(), |value| format!("{value:.2}"));
    let (chain, sink, subchunk) = (case.chain, case.sink.name(), case.subchunk);
    let device = report.engine.to_string();
    println!(
        "{chain:10} {subchunk:8} {sink:10} {device:6} {ours:9.2} {zarrs:10.2} {:>10} {ratio:7.2} \
         {:>8} {:6.2} {:>5} {:>5}            {waiting:6.2}s {encoding:7.2}s {storing:6.2}s",
        text(plain),
        text(of_plain),
        report.ratio(),
        text(cpu(&measured.ours)),
        text(cpu(&measured.zarrs)),
    );

    let what = |over: &str| format!("{chain}/{subchunk}/{sink}, rate over {over}");
    match (chain, case.sink) {
        ("none", Sink::Discarding) => goals.at_least(&what("zarrs'"), ratio, 3.0),
        ("zstd-1", _) => goals.at_least(&what("zarrs'"), ratio, 1.3),
        _ => {}
    }
    if let ("none", Some(of_plain)) = (chain, of_plain) {
        goals.at_least(&what("that of plain writes"), of_plain, 1.0 / 1.1);
    }
    Some(json!({
        "chain": chain, "subchunk": subchunk, "sink": sink, "device": device,
        "ours_gbps": ours, "zarrs_gbps": zarrs, "plain_write_gbps": plain,
        "ratio": ratio, "of_plain": of_plain,
        "bytes": case.frames.bytes(), "compression": report.ratio(), "rounds": measured.ours.len(),
        "ours_cpu_s": cpu(&measured.ours), "zarrs_cpu_s": cpu(&measured.zarrs),
        "plain_cpu_s": cpu(&measured.plain),
        "ours_waiting_s": waiting, "ours_encoding_s": encoding, "ours_storing_s": storing,
    }))
}
