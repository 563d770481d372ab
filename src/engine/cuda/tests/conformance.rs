//! The engine conformance suite, as the host engine passes it, on a simulated device.

use super::*;
use crate::conformance::check;
use crate::plan::{Engines, Rule};
use crate::{Backend, Options};

#[test]
fn a_device_where_it_can_and_the_host_where_it_cannot() {
    for schedule in [Schedule::Eager, Schedule::Latest, Schedule::Priority(1)] {
        for (tuning, cases) in [(TINY, 60), (Tuning::DEFAULT, 20)] {
            let simulation = simulation(schedule);
            let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
            let options = Options::default()
                .with_backend(Backend::Auto)
                .with_device_memory(1 << 28)
                .with_pinned_memory(1 << 28);
            let rule = Rule { uncompressed: true };
            let engines = Engines::of_devices(devices.clone(), rule, tuning);
            check(&options, &engines, cases);
            let metrics = devices.counters.snapshot();
            assert!(metrics.shards_encoded > 0 && metrics.shards_decoded > 0);
            // Corrupted shards have their last word from the host; nothing else goes there.
            let others: Vec<_> = metrics
                .fallbacks
                .keys()
                .filter(|reason| *reason != "the data were refused")
                .collect();
            assert!(others.is_empty(), "{others:?}");
            drop((devices, engines));
            assert_clean(&simulation);
        }
    }
}
