//! The simulation has teeth, and bites nobody who keeps the rules.

use super::*;
use crate::engine::cuda::kernels::testing;

const SITE: Site = Site("test");

#[test]
fn bytes_go_there_and_back() {
    let simulation = Simulation::eager();
    let mut a: Vec<u8> = (0..100).collect();
    let mut b = vec![0; 40];
    let mut empty = Vec::new();
    testing::run(
        &simulation,
        &mut [&mut a, &mut b, &mut empty],
        |stream, spans| {
            let part = DeviceSpan {
                offset: 10,
                len: 40,
                ..spans[0]
            };
            // SAFETY: the spans live until the stream was synchronised.
            unsafe { simulation.copy(stream, Span::Device(part), Span::Device(spans[1])) }
        },
    )
    .unwrap();
    assert_eq!(a, (0..100).collect::<Vec<u8>>());
    assert_eq!(b, (10..50).collect::<Vec<u8>>());
    assert!(simulation.violations().is_empty());
    assert_eq!(simulation.live(), Live::default());
}
