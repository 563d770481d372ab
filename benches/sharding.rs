//! Our codec and zarrs' encode and decode whole shards in turns, in one process.
//!
//! `cargo bench --package zarrs_cuda_benches --bench sharding [-- FILTER…]` prints a table and
//! writes `target/bench/sharding.json`. A filter is a part of a name like `encode/zstd-1/32`. The
//! size is that of our encoded shard over that of the decoded one.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "made-up data, and rates for people"
)]

use std::borrow::Cow;
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use zarrs::array::codec::ShardingCodec;
use zarrs::array::{ArrayBytes, ArrayToBytesCodecTraits, CodecOptions, FillValue, data_type};
use zarrs_cuda::{CudaShardingCodec, Options};
use zarrs_cuda_benches::arguments::Arguments;
use zarrs_cuda_benches::limit::Limit;
use zarrs_cuda_benches::microscopy::Microscopy;
use zarrs_cuda_benches::{Result, chains, median, results};

/// The shape of a shard, in uint16 elements.
const SHAPE: [u64; 3] = [256, 256, 512];
const ROUNDS: usize = 7;
const SUBCHUNKS: [u64; 3] = [16, 32, 64];

/// Times one call, in seconds. The result is dropped after the clock has stopped.
fn time<T>(f: impl FnOnce() -> Result<T>) -> Result<f64> {
    let start = Instant::now();
    let result = f()?;
    let elapsed = start.elapsed().as_secs_f64();
    drop(result);
    Ok(elapsed)
}

/// The median seconds of three functions, called in turns after one round that does not count.
fn race(
    mut ours: impl FnMut() -> Result<f64>,
    mut zarrs: impl FnMut() -> Result<f64>,
    mut limit: impl FnMut() -> Result<f64>,
) -> Result<[f64; 3]> {
    let mut seconds = [const { Vec::new() }; 3];
    for round in 0..=ROUNDS {
        let times = [ours()?, zarrs()?, limit()?];
        if round > 0 {
            for (all, time) in seconds.iter_mut().zip(times) {
                all.push(time);
            }
        }
    }
    Ok(seconds.map(|seconds| median(seconds).unwrap_or(f64::NAN)))
}

fn main() -> Result<()> {
    let arguments = Arguments::of_process();
    let data = Microscopy::new().volume([0; 3], SHAPE, 5);
    let gigabytes = data.len() as f64 / 1e9;
    let shape: Vec<NonZeroU64> = SHAPE
        .iter()
        .map(|&d| NonZeroU64::try_from(d))
        .collect::<std::result::Result<_, _>>()?;
    let (data_type, fill_value) = (data_type::uint16(), FillValue::from(0_u16));
    let options = CodecOptions::default();
    let threads = NonZeroUsize::new(options.concurrent_target()).unwrap_or(NonZeroUsize::MIN);
    let elements = || ArrayBytes::new_flen(Cow::Borrowed(data.as_slice()));

    println!(
        "{:6} {:18} {:>8} {:>10} {:>10} {:>10} {:>8} {:>9} {:>6} {:>8}",
        "op",
        "chain",
        "subchunk",
        "ours GB/s",
        "zarrs GB/s",
        "limit GB/s",
        "x zarrs",
        "of limit",
        "size",
        "x zarrs"
    );
    let mut rows = Vec::new();
    for chain in chains::ALL {
        let codecs = chains::codecs(chain)?;
        for edge in SUBCHUNKS {
            let wanted = |op: &str| arguments.wants(&format!("{op}/{chain}/{edge}"));
            if !wanted("encode") && !wanted("decode") {
                continue;
            }
            let configuration = chains::configuration(&codecs, edge)?;
            let ours =
                CudaShardingCodec::new_with_configuration(&configuration, Options::default())?;
            let zarrs = Arc::new(ShardingCodec::new_with_configuration(&configuration)?);
            let limit = Limit::new(chain, SHAPE, edge, threads)?;
            let encoded = ours
                .encode(elements(), &shape, &data_type, &fill_value, &options)?
                .into_owned();
            let size = encoded.len() as f64 / data.len() as f64;
            let zarrs_size = zarrs
                .encode(elements(), &shape, &data_type, &fill_value, &options)?
                .len() as f64
                / data.len() as f64;
            let decoded = zarrs
                .decode(
                    Cow::Borrowed(&encoded),
                    &shape,
                    &data_type,
                    &fill_value,
                    &options,
                )?
                .into_fixed()?;
            assert!(*decoded == *data, "{chain}: zarrs reads something else");
            drop(decoded);

            let encode = |codec: &dyn ArrayToBytesCodecTraits| {
                time(|| Ok(codec.encode(elements(), &shape, &data_type, &fill_value, &options)?))
            };
            let decode = |codec: &dyn ArrayToBytesCodecTraits| {
                let input = Cow::Borrowed(encoded.as_slice());
                time(|| Ok(codec.decode(input, &shape, &data_type, &fill_value, &options)?))
            };
            for op in ["encode", "decode"].into_iter().filter(|op| wanted(op)) {
                let seconds = if op == "encode" {
                    race(
                        || encode(&ours),
                        || encode(&*zarrs),
                        || time(|| Ok(limit.encode(&data)?)),
                    )?
                } else {
                    race(
                        || decode(&ours),
                        || decode(&*zarrs),
                        || time(|| Ok(limit.decode(&encoded)?)),
                    )?
                };
                let [ours, zarrs, limit] = seconds.map(|seconds| gigabytes / seconds);
                println!(
                    "{op:6} {chain:18} {edge:8} {ours:10.2} {zarrs:10.2} {limit:10.2} {:8.2} {:9.2} {size:6.3} {:8.3}",
                    ours / zarrs,
                    ours / limit,
                    size / zarrs_size
                );
                rows.push(json!({
                    "op": op, "chain": chain, "subchunk": edge,
                    "ours_gbps": ours, "zarrs_gbps": zarrs, "limit_gbps": limit,
                    "ratio": ours / zarrs, "of_limit": ours / limit,
                    "size": size, "zarrs_size": zarrs_size,
                }));
            }
        }
    }
    results::write(env!("CARGO_TARGET_TMPDIR"), "sharding.json", &rows)?;
    Ok(())
}
