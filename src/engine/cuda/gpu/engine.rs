//! The engine conformance suite, as the host engine and the simulation pass it, on the device.

use super::cases;
use crate::{
    Backend, Options,
    conformance::check,
    engine::cuda::{Devices, Tuning, driver::cuda::gpu_or_skip},
    plan::{Engines, Rule},
};

/// So small that a shard of a few KiB is many batches of many slabs, and every ring goes round.
const TINY: Tuning = Tuning {
    slab: 384,
    ring: 2,
    batch: 1200,
    batches: 2,
};

#[test]
fn shards_of_the_conformance_suite() {
    let Some(driver) = gpu_or_skip("shards_of_the_conformance_suite") else {
        return;
    };
    for tuning in [TINY, Tuning::DEFAULT] {
        let devices = Devices::new(vec![driver.clone()]);
        let options = Options::default().with_backend(Backend::Auto);
        let rule = Rule { uncompressed: true };
        let engines = Engines::of_devices(devices.clone(), rule, tuning);
        check(&options, &engines, cases());
        let metrics = devices.counters.snapshot();
        assert!(metrics.shards_encoded > 0 && metrics.shards_decoded > 0);
        // Corrupted shards have their last word from the host; nothing else goes there.
        let others: Vec<_> = metrics
            .fallbacks
            .keys()
            .filter(|reason| *reason != "the data were refused")
            .collect();
        assert!(others.is_empty(), "{others:?}");
    }
}
