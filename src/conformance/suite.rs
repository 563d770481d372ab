//! The suite: every promise of the engine contract, on any engine.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Mutex;

use proptest::strategy::Strategy;
use proptest::test_runner::TestCaseError;
use zarrs::array::{ArrayBytes, ArrayToBytesCodecTraits, CodecChain, CodecOptions};
use zarrs_codec::CodecError;
use zarrs_cuda_testing::effort;

use super::case::{Case, cases, compressed_cases};
use super::naive::Naive;
use crate::codec::{CudaShardingCodec, encode_elements};
use crate::options::Options;
use crate::plan::{self, Engines};
use crate::shard::sharding::Sharding;
use zarrs_cuda_engine::contract::{
    DecodedSubchunk, EncodedShard, EncodedSubchunk, Engine, ShardElements,
};
use zarrs_cuda_engine::layout::{Extent, c_order, strides_in};
use zarrs_cuda_engine::memory::spares::Spares;

/// Checks what `options` choose among `engines`, which have given up `fallbacks()` shards so far.
/// Returns for how many cases they chose a device.
pub(crate) fn check(
    options: &Options,
    engines: &Engines,
    num_cases: u32,
    fallbacks: &dyn Fn() -> u64,
) -> u64 {
    check_all(&cases(), options, engines, num_cases, fallbacks)
}

/// Does the same as [`check`], for cases with a compressor that a device has in every chain.
pub(crate) fn check_compressed(
    options: &Options,
    engines: &Engines,
    num_cases: u32,
    fallbacks: &dyn Fn() -> u64,
) -> u64 {
    check_all(&compressed_cases(), options, engines, num_cases, fallbacks)
}

fn check_all(
    cases: &impl Strategy<Value = Case>,
    options: &Options,
    engines: &Engines,
    num_cases: u32,
    fallbacks: &dyn Fn() -> u64,
) -> u64 {
    let on_device = Cell::new(0);
    effort::property(num_cases, cases, |case| {
        let engine = check_case(options, engines, &case, fallbacks)?;
        on_device.set(on_device.get() + u64::from(engine == "cuda"));
        Ok(())
    });
    on_device.get()
}

/// Fail the case unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(TestCaseError::fail(format!($($message)+)));
        }
    };
}

/// Returns the name of the engine that was chosen.
fn check_case(
    options: &Options,
    engines: &Engines,
    case: &Case,
    fallbacks: &dyn Fn() -> u64,
) -> Result<&'static str, TestCaseError> {
    let before = fallbacks();
    let fail = |error: &dyn std::fmt::Display| TestCaseError::fail(error.to_string());
    let codec = CudaShardingCodec::new_with_configuration(&case.configuration(), options.clone())
        .map_err(|error| fail(&error))?
        .with_engines(engines.clone());
    let chain = |codecs: &[serde_json::Value]| {
        let metadata: Vec<_> = codecs
            .iter()
            .map(|codec| serde_json::from_value(codec.clone()).expect("metadata"))
            .collect();
        CodecChain::from_metadata(&metadata).map_err(|error| fail(&error))
    };
    let (inner_codecs, index_codecs) = (chain(&case.codecs)?, chain(&case.index_codecs)?);
    let shard_shape = case.shard();
    let subchunk_shape: Vec<NonZeroU64> = case
        .subchunk
        .iter()
        .map(|&n| NonZeroU64::new(n).expect("positive"))
        .collect();
    let naive = Naive {
        shard: &shard_shape,
        subchunk: &subchunk_shape,
        data_type: &case.data_type,
        fill_value: &case.fill_value,
        inner_codecs: &inner_codecs,
        index_codecs: &index_codecs,
        index_at_start: case.index_at_start,
        store_empty: case.store_empty,
    };
    let shard = codec
        .sharding(&shard_shape, &case.data_type, &case.fill_value)
        .map_err(|error| fail(&error))?;
    let elements = case.elements();
    let options = CodecOptions::default()
        .with_store_empty_chunks(case.store_empty)
        .with_concurrent_target(case.threads);

    let choice = shard.choose_engine().map_err(|error| fail(&error))?;
    let subject = Subject {
        engine: &*choice.engine,
        case,
        naive: &naive,
        shard: &shard,
        elements: &elements,
        options: &options,
    };
    let encoded = subject.encode(3, 5)?;
    subject.check_places(&encoded)?;
    subject.check_subchunks(&encoded)?;
    subject.check_determinism(&encoded)?;
    subject.check_decode(&encoded)?;
    subject.check_decode_each(&encoded)?;
    subject.check_codec(&codec)?;
    subject.check_elements(&codec)?;
    // Where another engine takes over, everything above was true of that one.
    ensure!(
        fallbacks() == before,
        "shards that are as they should be fell back to another engine"
    );
    subject.check_corrupted(&encoded);
    Ok(choice.engine.name())
}

/// One case, on one engine.
struct Subject<'a> {
    engine: &'a dyn Engine,
    case: &'a Case,
    naive: &'a Naive<'a>,
    shard: &'a Sharding,
    elements: &'a [u8],
    options: &'a CodecOptions,
}

impl Subject<'_> {
    fn encode(&self, head: usize, tail: usize) -> Result<EncodedShard, TestCaseError> {
        self.encode_with(self.options, head, tail)
    }

    fn encode_with(
        &self,
        options: &CodecOptions,
        head: usize,
        tail: usize,
    ) -> Result<EncodedShard, TestCaseError> {
        self.shard
            .with_job(options, |job| {
                self.engine.encode(job, self.elements, head, tail)
            })
            .map_err(|error| TestCaseError::fail(error.to_string()))
    }

    /// Contract 1 and 2: C order, dense, after `head` zeros; empty subchunks are not stored.
    fn check_places(&self, encoded: &EncodedShard) -> Result<(), TestCaseError> {
        ensure!(encoded.bytes.starts_with(&[0; 3]), "the head is not zero");
        ensure!(
            encoded.bytes.capacity() >= encoded.bytes.len() + 5,
            "no room for the tail"
        );
        let mut end = 3;
        for (coordinates, extent) in self.naive.subchunks().iter().zip(&encoded.extents) {
            let elements = self.naive.elements(self.elements, coordinates);
            let stored = self.case.store_empty || !self.naive.is_empty(&elements);
            ensure!(
                extent.is_some() == stored,
                "subchunk {coordinates:?} should be stored: {stored}"
            );
            if let Some(extent) = extent {
                ensure!(
                    extent.start == end,
                    "subchunk {coordinates:?} lies at {extent:?}, not at {end}"
                );
                end = extent.end;
            }
        }
        ensure!(end == encoded.bytes.len(), "there are bytes after the last");
        Ok(())
    }

    /// Every subchunk decodes to its elements, and is zarrs' byte for byte where there is one way.
    fn check_subchunks(&self, encoded: &EncodedShard) -> Result<(), TestCaseError> {
        for (coordinates, extent) in self.naive.subchunks().iter().zip(&encoded.extents) {
            let Some(extent) = extent else { continue };
            let bytes = &encoded.bytes[extent.clone()];
            let elements = self.naive.elements(self.elements, coordinates);
            ensure!(
                self.naive.decode(bytes) == elements,
                "zarrs decodes subchunk {coordinates:?} to something else"
            );
            ensure!(
                !self.case.is_exact() || bytes == self.naive.encode(&elements),
                "subchunk {coordinates:?} is not zarrs' byte for byte"
            );
        }
        Ok(())
    }

    /// Contract 3: the same bytes, whatever the number of threads.
    fn check_determinism(&self, encoded: &EncodedShard) -> Result<(), TestCaseError> {
        for threads in [0, 1, 2, 16] {
            let options = self.options.with_concurrent_target(threads);
            let again = self.encode_with(&options, 3, 5)?;
            ensure!(
                again.bytes == encoded.bytes && again.extents == encoded.extents,
                "other bytes with {threads} threads"
            );
        }
        Ok(())
    }

    /// The engine decodes its own shard, and one that zarrs encoded, with gaps and out of order.
    fn check_decode(&self, encoded: &EncodedShard) -> Result<(), TestCaseError> {
        let mut foreign = vec![0xA5; 7];
        let mut extents: Vec<Extent> = Vec::new();
        for coordinates in self.naive.subchunks().iter().rev() {
            let elements = self.naive.elements(self.elements, coordinates);
            extents.push((!self.naive.is_empty(&elements)).then(|| {
                let start = foreign.len();
                foreign.extend(self.naive.encode(&elements));
                let extent = start..foreign.len();
                foreign.push(0xA5);
                extent
            }));
        }
        extents.reverse();
        for (bytes, extents) in [(&encoded.bytes, &encoded.extents), (&foreign, &extents)] {
            let decoded = self
                .shard
                .with_job(self.options, |job| self.engine.decode(job, bytes, extents));
            match decoded {
                Ok(decoded) => ensure!(decoded == self.elements, "decodes to something else"),
                Err(error) => ensure!(false, "does not decode: {error}"),
            }
        }
        Ok(())
    }

    /// Some subchunks alone.
    fn check_decode_each(&self, encoded: &EncodedShard) -> Result<(), TestCaseError> {
        let wanted: Vec<EncodedSubchunk<'_>> = encoded
            .extents
            .iter()
            .enumerate()
            .skip(1)
            .step_by(2)
            .map(|(number, extent)| EncodedSubchunk {
                number,
                bytes: extent.clone().map(|extent| &encoded.bytes[extent]),
            })
            .collect();
        let seen = Mutex::new(HashMap::new());
        self.shard
            .with_job(self.options, |job| {
                plan::host_engine().decode_each(job, &wanted, &|number, decoded| {
                    let elements = match decoded {
                        DecodedSubchunk::Bytes(elements) => elements.to_vec(),
                        DecodedSubchunk::Fill => job
                            .fill_value
                            .repeat(job.grid.subchunk_bytes() / job.grid.element_size()),
                    };
                    let before = seen.lock().expect("no panic").insert(number, elements);
                    assert!(before.is_none(), "subchunk {number} twice");
                    Ok(())
                })
            })
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        let seen = seen.into_inner().expect("no panic");
        let coordinates = self.naive.subchunks();
        for subchunk in &wanted {
            let expected = self
                .naive
                .elements(self.elements, &coordinates[subchunk.number]);
            ensure!(
                seen.get(&subchunk.number) == Some(&expected),
                "subchunk {} alone decodes to something else",
                subchunk.number
            );
        }
        Ok(())
    }

    /// Elements in memory with strides give the same shard, and `None` if nothing is stored.
    fn check_elements(&self, codec: &CudaShardingCodec) -> Result<(), TestCaseError> {
        let fail = |error: CodecError| TestCaseError::fail(error.to_string());
        let (shape, case) = (self.naive.shard, self.case);
        let elements = ArrayBytes::new_flen(Cow::Borrowed(self.elements));
        let expected = codec.encode(
            elements,
            shape,
            &case.data_type,
            &case.fill_value,
            self.options,
        );
        let expected = expected.map_err(fail)?;
        let fill_value = case.fill_value.as_ne_bytes();
        let size = fill_value.len();
        let is_stored = case.store_empty || self.elements.chunks(size).any(|e| e != fill_value);
        // The memory is a larger array with its axes in another order.
        let extents: Vec<usize> = self.shard.grid.shard().to_vec();
        let axes = extents.len();
        let larger: Vec<usize> = extents.iter().map(|n| n + case.threads % 3).collect();
        let mut order: Vec<usize> = (0..axes).collect();
        order.rotate_left(usize::from(case.index_at_start && axes > 1));
        let strides = strides_in(&order, &larger, size);
        let mut memory = vec![0xA5; larger.iter().product::<usize>() * size];
        for (number, element) in self.elements.chunks(size).enumerate() {
            let at = c_order::coordinates(number, &extents);
            let start: usize = at.iter().zip(&strides).map(|(at, step)| at * step).sum();
            memory[start..start + size].copy_from_slice(element);
        }
        let spares = Spares::default();
        for (elements, spares) in [
            (ShardElements::strided(&memory, &strides[..]), None),
            (ShardElements::contiguous(self.elements), Some(&spares)),
            (ShardElements::contiguous(self.elements), Some(&spares)),
        ] {
            let encoded = encode_elements(self.shard, &elements, spares, self.options);
            let encoded = encoded.map_err(fail)?;
            ensure!(
                encoded.as_deref() == is_stored.then_some(&*expected),
                "another shard from {} bytes with strides {strides:?}",
                elements.bytes().len()
            );
            if let (Some(spares), Some(mut used)) = (spares, encoded) {
                // The next shard must not show what is left in its memory.
                used.fill(0xA5);
                spares.give(used);
            }
        }
        Ok(())
    }

    /// Contract 4: corrupted bytes give the data or an error. A panic fails the case by itself.
    fn check_corrupted(&self, encoded: &EncodedShard) {
        let len = encoded.bytes.len();
        for i in 0..16_usize.min(len) {
            let mut corrupted = encoded.bytes.clone();
            let at = (usize::try_from(self.case.seed % (1 << 31)).unwrap_or(0) + i * 7919) % len;
            corrupted[at] ^= 1 << (i % 8);
            let truncated = &corrupted[..len - i];
            let _either = self.shard.with_job(self.options, |job| {
                self.engine.decode(job, truncated, &encoded.extents)
            });
        }
    }

    /// The codec with this engine: the index, at either end, with any index codecs.
    fn check_codec(&self, codec: &CudaShardingCodec) -> Result<(), TestCaseError> {
        let (shape, data_type, fill_value) = (
            self.naive.shard,
            &self.case.data_type,
            &self.case.fill_value,
        );
        let expected = self.naive.encode_shard(self.elements);
        let elements = ArrayBytes::new_flen(Cow::Borrowed(self.elements));
        let encoded = codec
            .encode(elements, shape, data_type, fill_value, self.options)
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        ensure!(
            !self.case.is_exact() || *encoded == *expected,
            "the shard is not the oracle's byte for byte"
        );
        for shard in [&*encoded, &*expected] {
            let decoded = codec
                .decode(
                    Cow::Borrowed(shard),
                    shape,
                    data_type,
                    fill_value,
                    self.options,
                )
                .and_then(|bytes| Ok(bytes.into_fixed()?))
                .map_err(|error| TestCaseError::fail(error.to_string()))?;
            ensure!(
                *decoded == *self.elements,
                "the codec decodes something else"
            );
        }
        Ok(())
    }
}
