//! Images whose levels are made on a simulated device, against an oracle that reduces whole arrays.

use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use zarrs::storage::store::MemoryStore;

use super::*;
use crate::Backend;
use crate::plan::{Engines, Rule};
use crate::writer::multiscale::tests::{images, on};

#[test]
fn all_levels_are_what_an_oracle_makes_of_the_whole_array() {
    let config = zarrs_cuda_testing::effort::config(150);
    let reduced = AtomicUsize::new(0);
    proptest!(config, |(image in images(), seed in 0_u64..3)| {
        let simulation = simulation(match seed {
            0 => Schedule::Eager,
            1 => Schedule::Latest,
            _ => Schedule::Priority(seed),
        });
        let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
        let engines = Engines::of_devices(devices.clone(), Rule::ALL, TINY);
        let image = on(image, engines, Backend::Auto);
        let store = Arc::new(MemoryStore::new());
        image.write(&store);
        image.check(&store);
        let is_reduced = simulation.sites().iter().any(|site| site.0.contains("reduc"));
        reduced.fetch_add(usize::from(is_reduced), Ordering::Relaxed);
        drop((image, devices));
        assert_clean(&simulation);
    });
    assert!(
        reduced.into_inner() > 20,
        "few levels were made on the device"
    );
}
