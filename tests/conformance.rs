//! The engine conformance suite, on every engine that this machine has.

/// Random shards in a run of the suite.
const CASES: u32 = 4000;

#[test]
fn host_engine() {
    zarrs_cuda::conformance::check_host(CASES);
}
