//! Devices on the nodes of made-up machines.

use std::sync::Mutex;
use std::thread::{self, ThreadId};

use super::*;
use crate::cuda::driver::Found;
use crate::cuda::driver::simulation::Kind;
use crate::cuda::numa;
use crate::cuda::numa::made_up::{address, machine};

/// The thread that asked for pinned memory, and the processors that it could use.
type Asked = Arc<Mutex<Vec<(ThreadId, Vec<usize>)>>>;

fn device(ordinal: usize, bus: Option<u32>) -> (Arc<Simulation>, Asked) {
    let simulation = Simulation::new(Config {
        ordinal,
        pci: bus.map(|bus| address(0, bus, 0)),
        ..Config::default()
    });
    let asked = Asked::default();
    simulation.on_allocate({
        let asked = asked.clone();
        move |kind| {
            assert_eq!(kind, Kind::Pinned);
            let by = (thread::current().id(), numa::cpus_of_thread());
            asked.lock().expect("no panic").push(by);
        }
    });
    (Arc::new(simulation), asked)
}

/// Runs a shard and a stream's lane on each of two devices. Returns who asked for pinned memory of
/// each.
fn who_asks(
    buses: [Option<u32>; 2],
    nodes: &[&str],
    numa_nodes: &[(&str, &str)],
) -> [Vec<(ThreadId, Vec<usize>)>; 2] {
    let folder = tempfile::tempdir().expect("a folder");
    machine(folder.path(), nodes, numa_nodes);
    let (first, asked_of_first) = device(0, buses[0]);
    let (second, asked_of_second) = device(1, buses[1]);
    let drivers = [&first, &second].map(|simulation| simulation.clone() as Arc<dyn Driver>);
    let devices = Devices::on_machine(
        Found {
            drivers: drivers.to_vec(),
            refused: Vec::new(),
        },
        folder.path(),
    );
    for ordinal in [0, 1] {
        let limits = DeviceLimits {
            devices: Some(vec![ordinal]),
            ..limits()
        };
        let engine = CudaEngine::new(devices.clone(), limits, Tuning::TINY);
        Shard::new(1).round_trip(&engine).expect("no fault");
    }
    drop(devices);
    for simulation in [first, second] {
        assert!(
            simulation.violations().is_empty(),
            "{:?}",
            simulation.violations()
        );
        assert_eq!(simulation.live(), Live::default());
    }
    [asked_of_first, asked_of_second].map(|asked| asked.lock().expect("no panic").clone())
}

const DEVICES: [&str; 2] = ["0000:3b:00.0", "0000:af:00.0"];
const BUSES: [Option<u32>; 2] = [Some(0x3b), Some(0xaf)];

#[test]
fn pinned_memory_is_allocated_on_the_node_of_its_device() {
    let mine = numa::cpus_of_thread();
    // Half of the processors that this process may use, and the others.
    let (low, high) = mine.split_at(mine.len() / 2);
    if low.is_empty() {
        eprintln!("skipped: this process may use one processor only");
        return;
    }
    let list = |cpus: &[usize]| {
        let cpus: Vec<String> = cpus.iter().map(ToString::to_string).collect();
        cpus.join(",")
    };
    let nodes = [list(low), list(high)];
    let nodes = [nodes[0].as_str(), nodes[1].as_str()];
    let [a, b] = DEVICES;
    for (of_nodes, expected) in [
        (["0", "1"], [Some(low), Some(high)]),
        (["1", "0"], [Some(high), Some(low)]),
        (["1", "1"], [Some(high), Some(high)]),
        (["-1", "0"], [None, Some(low)]),
        (["2", "-1"], [None, None]),
    ] {
        let asked = who_asks(BUSES, &nodes, &[(a, of_nodes[0]), (b, of_nodes[1])]);
        for (asked, expected) in asked.iter().zip(expected) {
            assert!(!asked.is_empty());
            for (thread, cpus) in asked {
                let is_this = *thread == thread::current().id();
                assert_eq!(is_this, expected.is_none(), "{of_nodes:?}");
                assert_eq!(cpus, expected.unwrap_or(&mine), "{of_nodes:?}");
            }
        }
    }
    assert_eq!(numa::cpus_of_thread(), mine, "this thread was bound");
}

/// Most machines are of this kind: they have one node, or no known node.
#[test]
fn nothing_changes_where_there_is_one_node_or_none_is_known() {
    let this = (thread::current().id(), numa::cpus_of_thread());
    let [a, b] = DEVICES;
    let of_nodes = [(a, "0"), (b, "0")];
    for (buses, nodes) in [
        (BUSES, &["0-1023"][..]),
        (BUSES, &["0-1023", "1024-2047"]),
        (BUSES, &["", "0-1023"]),
        ([None, None], &["0", "1"]),
    ] {
        let asked = who_asks(buses, nodes, &of_nodes);
        assert!(asked.iter().flatten().all(|by| *by == this), "{nodes:?}");
    }
}
