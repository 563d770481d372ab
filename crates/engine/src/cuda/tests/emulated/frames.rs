//! The calls of the CUDA driver for a frame that an application has on the device.

use std::collections::BTreeMap;

use super::*;
use crate::contract::stream::DeviceBytes;

/// Returns how often each function was called on a device while `work` ran.
fn calls_of<T>(device: usize, work: impl FnOnce() -> T) -> (T, BTreeMap<&'static str, usize>) {
    let before: BTreeMap<_, _> = driver::calls(device).into_iter().collect();
    let result = work();
    let more = driver::calls(device).into_iter().map(|(name, calls)| {
        let earlier = before.get(name).copied().unwrap_or(0);
        (name, calls - earlier)
    });
    (result, more.filter(|(_, calls)| *calls > 0).collect())
}

/// A padded frame takes one call to copy all of its rows, also where rows and columns are padded.
#[test]
fn each_call_for_a_padded_frame() {
    let driver = emulated::driver(config(Schedule::Latest));
    let device = driver.device().ordinal;
    let chain = KnownChain {
        order: vec![0, 1, 2],
        swap: 1,
        stages: vec![],
    };
    let axes = [(0, 4, 1), (143, 8, 3), (143, 8, 2)];
    let subject = Subject::new(&axes, 2, chain, (1, 1));
    let frame = subject.job.grid.slice_bytes();
    let devices = Devices::new(vec![driver.clone() as Arc<dyn Driver>]);
    let compressors = Compressors {
        levels: HighestLevels::default(),
        nvcomp: None,
        decode: false,
    };
    let engine = CudaEngine::new(devices, limits(), Tuning::TINY)
        .for_chain(subject.chain(), compressors)
        .without_checks();
    let stream = engine
        .stream(Arc::new(subject.job.clone()), returned(), None)
        .unwrap();
    // Another thread allocates the other inputs. Its calls do not belong to a frame.
    stream.settle();
    let mut input = stream.input(true).unwrap().unwrap();
    driver.enter().unwrap();
    let memory = driver.allocate(frame).unwrap();
    let mut of_frames = Vec::new();
    for number in 0..4 {
        let given = DeviceBytes {
            device,
            pointer: memory.0,
            len: frame,
            stream: 0,
        };
        let (reusable, calls) = calls_of(device, || {
            // SAFETY: nothing writes the memory before it was copied.
            unsafe { input.write_from_device(number * frame, &given) }.unwrap()
        });
        reusable.wait().unwrap();
        of_frames.push(calls);
    }
    let expected = [
        ("cuCtxPopCurrent_v2", 1),
        ("cuCtxPushCurrent_v2", 1),
        ("cuEventRecord", 2),
        ("cuMemcpy3DAsync_v2", 1),
        ("cuStreamIsCapturing", 1),
        ("cuStreamWaitEvent", 1),
    ];
    for calls in &of_frames[1..] {
        assert_eq!(calls, &BTreeMap::from(expected));
    }
    // Before the first frame, the fill value goes to the device; and two events are created.
    let mut first = BTreeMap::from(expected);
    first.extend([
        ("cuEventCreate", 2),
        ("cuEventRecord", 3),
        ("cuMemcpyHtoDAsync_v2", 1),
    ]);
    // The wait for the fill value asks at least once.
    assert!(of_frames[0].remove("cuEventQuery").is_some());
    assert_eq!(of_frames[0], first);
    // SAFETY: all frames were copied.
    unsafe { driver.free(memory) }.unwrap();
    driver.leave().unwrap();
    drop((input, stream, engine));
    assert_eq!(driver::violations(device), [""; 0]);
    assert_eq!(driver::live(device), Live::default());
}
