//! Two kernels alone: how many bytes they move, as their trace says.

use serde_json::Value;

use super::*;
use crate::cuda::kernels::aggregate;
use crate::cuda::kernels::scatter::SlabScatter;
use crate::cuda::kernels::spans::Slots;
use crate::cuda::kernels::testing::run;
use crate::layout::{Lift, LiftBatch, LiftSlab};

/// 2 MiB through `scatter_16` and through `gather`.
#[test]
fn kernels_alone() {
    let simulation = Simulation::new(Config {
        multiprocessors: 132,
        trace: true,
        ..Config::default()
    });
    let driver = &simulation;
    let len = 2 << 20;
    let batch = LiftBatch {
        counts: &[1, 2, 2],
        subchunk: &[64, 64, 64],
        element_size: 2,
        order: &[0, 1, 2],
        slot_stride: 1 << 19,
    };
    let slab = LiftSlab {
        start: &[0, 0, 0],
        shape: &[64, 128, 128],
    };
    let scatter = SlabScatter::new(&Lift::new(&batch, &slab).unwrap(), 1, &[0; 2]).unwrap();
    let data: Vec<u8> = (0..len).map(|n| (n / 3) as u8).collect();
    let mut buffers = [
        data.clone(),
        vec![0; len],
        SlabScatter::fill_pattern(&[0; 2]),
    ];
    let [from, to, fill] = &mut buffers;
    run(driver, &mut [from, to, fill], |stream, spans| {
        // SAFETY: the spans are those of the slab, the slots and the fill value.
        unsafe { scatter.enqueue_scatter(driver, stream, spans[0], spans[1], None, spans[2]) }
    })
    .unwrap();
    let (count, each) = (64, len / 64);
    let words = |numbers: &mut dyn Iterator<Item = usize>| -> Vec<u8> {
        numbers.flat_map(|n| (n as u64).to_ne_bytes()).collect()
    };
    let sources: Vec<u8> = (0..64_u32).flat_map(|n| (63 - n).to_ne_bytes()).collect();
    let mut buffers = [
        data.clone(),
        sources,
        words(&mut (0..=count).map(|n| n * each)),
        vec![0; len],
    ];
    let [from, sources, offsets, to] = &mut buffers;
    run(
        driver,
        &mut [from, sources, offsets, to],
        |stream, spans| {
            let slots = Slots {
                span: spans[0],
                stride: each,
                count,
            };
            // SAFETY: each run has a slot of its own, and the offsets are those of the runs.
            unsafe { aggregate::gather(driver, stream, slots, spans[1], spans[2], count, spans[3]) }
        },
    )
    .unwrap();
    let reversed: Vec<u8> = data.chunks(each).rev().flatten().copied().collect();
    assert_eq!(buffers[3], reversed);
    let violations = simulation.violations();
    assert!(violations.is_empty(), "{violations:#?}");
    let trace = simulation.trace();
    let steps: Vec<Value> = trace
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let names: Vec<_> = steps
        .iter()
        .filter_map(|step| step["name"].as_str())
        .collect();
    assert_eq!(names, ["scatter_16", "gather"]);
    for step in steps.iter().filter(|step| step["operation"] == "kernel") {
        let moved = step["took"]["bytes"].as_u64().unwrap();
        // Read once and written once, and a few words.
        let least = 2 * len as u64;
        assert!((least..least + least / 10).contains(&moved), "{step}");
    }
}
