//! Whole images against an oracle that reduces whole arrays, one window at a time.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use zarrs::array::{Array, ArrayBuilder, ArrayBytes, DataType, FillValue, data_type};
use zarrs::group::Group;
use zarrs::storage::store::MemoryStore;
use zarrs_cuda_testing::stores::faulty::{Fault, Faulty};
use zarrs_storage::{ReadableStorageTraits, StoreKey, WritableStorageTraits};

use super::{Axis, MultiscaleBuilder, MultiscaleWriter, Reduction};
use crate::codec::CudaShardingCodecBuilder;
use crate::options::{Backend, Options};
use crate::plan::Engines;
use crate::reader::Cancel;
use crate::writer::appending::Appending;
use crate::writer::interrupted::{Files, files, snapshot};
use crate::writer::{ArrayWriter, Resume, WriterError};
use zarrs_cuda_engine::reduce::{Elements, oracle};

/// A step of an application.
#[derive(Clone, Copy, Debug)]
enum Step {
    Bytes(usize),
    Slices(usize),
    TryBytes(usize),
    Flush,
    /// The writer is gone, and another one goes on.
    Again,
    /// The writer finishes, and another one goes on inside a shard.
    Session,
}

#[derive(Clone, Debug)]
pub(crate) struct Image {
    /// The engines and the backend, if it is not the host alone.
    on: Option<(Engines, Backend)>,
    kind: Elements,
    reduction: Reduction,
    axes: Vec<Axis>,
    levels: Option<usize>,
    /// Extents of slices.
    inner: Vec<u64>,
    subchunk: Vec<u64>,
    /// Subchunks of a shard along each axis.
    counts: Vec<u64>,
    /// The bytes of all slices.
    slices: usize,
    pub(crate) elements: Vec<u8>,
    steps: Vec<Step>,
    epochs: Option<usize>,
}

impl Image {
    fn data_type(&self) -> DataType {
        let name = match self.kind {
            Elements::Bytes(size) => format!("r{}", 8 * size),
            kind => format!("{kind:?}").to_lowercase(),
        };
        DataType::from_metadata(&zarrs::metadata::v3::MetadataV3::new(name)).unwrap()
    }

    /// The array of level 0, without slices. It is not stored.
    fn array<S: ?Sized>(&self, store: &Arc<S>) -> Array<S> {
        let data_type = self.data_type();
        let options = Options::default().with_backend(Backend::Host);
        let nonzero = self.subchunk.iter().map(|e| (*e).try_into().unwrap());
        let mut codec = CudaShardingCodecBuilder::new(nonzero.collect(), &data_type)
            .options(options)
            .build()
            .unwrap();
        if let Some((engines, backend)) = &self.on {
            let options = Options::default()
                .with_backend(*backend)
                .with_device_memory(1 << 30)
                .with_pinned_memory(1 << 30);
            codec = codec.with_options(options).with_engines(engines.clone());
        }
        let shape: Vec<u64> = std::iter::once(0).chain(self.inner.clone()).collect();
        let shard = std::iter::zip(&self.subchunk, &self.counts).map(|(a, b)| a * b);
        let shard: Vec<u64> = shard.collect();
        let fill = FillValue::new(vec![0; self.kind.size()]);
        ArrayBuilder::new(shape, shard, data_type, fill)
            .array_to_bytes_codec(Arc::new(codec))
            .build(store.clone(), "/image/0")
            .unwrap()
    }

    pub(crate) fn builder<S>(&self, store: &Arc<S>) -> MultiscaleBuilder<S>
    where
        S: ?Sized + zarrs_storage::ReadableWritableStorageTraits + 'static,
    {
        self.builder_of(&self.array(store))
    }

    /// A builder for level 0 as it is stored.
    fn builder_of<S>(&self, array: &Array<S>) -> MultiscaleBuilder<S>
    where
        S: ?Sized + zarrs_storage::ReadableWritableStorageTraits + 'static,
    {
        let mut builder = MultiscaleWriter::builder(array)
            .with_axes(self.axes.clone())
            .with_reduction(self.reduction)
            .with_store_threads(2);
        if let Some(levels) = self.levels {
            builder = builder.with_levels(levels);
        }
        match self.epochs {
            Some(epochs) => builder.with_epochs_per_batch(epochs),
            None => builder,
        }
    }

    /// Stores level 0, and no other level.
    fn store_level_0<S>(&self, store: &Arc<S>)
    where
        S: ?Sized + zarrs_storage::ReadableWritableStorageTraits + 'static,
    {
        let array = self.array(store);
        array.store_metadata().unwrap();
        let mut writer = ArrayWriter::builder(&array).build().unwrap();
        writer.append_bytes(&self.elements).unwrap();
        writer.finish().unwrap();
    }

    /// The bytes of a slice.
    pub(crate) fn slice(&self) -> usize {
        self.elements.len() / self.slices.max(1)
    }

    /// Each level: its shape, and its elements.
    fn expected(&self, levels: usize) -> Vec<(Vec<usize>, Vec<u8>)> {
        let inner = self.inner.iter().map(|extent| *extent as usize);
        let shape: Vec<usize> = std::iter::once(self.slices).chain(inner).collect();
        let factors: Vec<usize> = self.axes.iter().map(|axis| axis.factor as usize).collect();
        let mut expected = vec![(shape, self.elements.clone())];
        for _ in 1..levels {
            let (shape, elements) = &expected[expected.len() - 1];
            let next = oracle::reduced(
                self.kind,
                self.reduction.of_engine(),
                elements,
                shape,
                &factors,
            );
            expected.push(next);
        }
        expected
    }

    /// Checks all levels that the group of the image has.
    pub(crate) fn check<S>(&self, store: &Arc<S>)
    where
        S: ?Sized + zarrs_storage::ReadableStorageTraits + 'static,
    {
        let group = Group::open(store.clone(), "/image").unwrap();
        let datasets = group.attributes()["ome"]["multiscales"][0]["datasets"].as_array();
        let paths: Vec<String> = datasets
            .unwrap()
            .iter()
            .map(|dataset| format!("/image/{}", dataset["path"].as_str().unwrap()))
            .collect();
        assert!(self.levels.is_none_or(|levels| levels == paths.len()));
        for (path, (shape, elements)) in paths.iter().zip(self.expected(paths.len())) {
            let array = Array::open(store.clone(), path).unwrap();
            let stored: Vec<usize> = array.shape().iter().map(|e| *e as usize).collect();
            assert_eq!(stored, shape, "{path}");
            let stored: ArrayBytes<'_> = array.retrieve_array_subset(&array.subset_all()).unwrap();
            let stored = stored.into_fixed().unwrap();
            let first = std::iter::zip(&*stored, &elements).position(|(a, b)| a != b);
            assert_eq!(
                first, None,
                "a byte of {path}, of shape {shape:?}, is wrong"
            );
        }
    }

    /// Appends the slices from the writer's start on, step by step, and builds another writer for each
    /// [`Step::Again`].
    pub(crate) fn write<S>(&self, store: &Arc<S>)
    where
        S: ?Sized + zarrs_storage::ReadableWritableStorageTraits + 'static,
    {
        let builder = self.builder(store);
        let resume = || {
            let resumed = self.builder(store).with_start(Resume).build();
            // If no shard is stored, all elements may be missing.
            resumed.unwrap_or_else(|error| {
                assert!(error.to_string().contains("none of them is stored"));
                self.builder(store).with_start(0).build().unwrap()
            })
        };
        let mut writer = builder.build().unwrap();
        let slice = self.slice();
        let mut at = 0;
        let mut again = 3;
        for step in self.steps.iter().cycle() {
            let rest = &self.elements[at..];
            if rest.is_empty() {
                break;
            }
            match step {
                Step::Bytes(len) => {
                    let len = (*len).min(rest.len());
                    writer.append_bytes(&rest[..len]).unwrap();
                    at += len;
                }
                Step::Slices(slices) => {
                    let to_end = slice * slices - at % slice;
                    let len = to_end.min(rest.len());
                    writer.append_bytes(&rest[..len]).unwrap();
                    at += len;
                }
                Step::TryBytes(len) => {
                    let now = &rest[..(*len).min(rest.len())];
                    at += now.len() - writer.try_append_bytes(now).unwrap().len();
                }
                Step::Flush => writer.flush().unwrap(),
                Step::Again if again > 0 => {
                    again -= 1;
                    writer.abort().unwrap();
                    // A session may have ended within a shard.
                    let resumed = |error: WriterError| {
                        let text = error.to_string();
                        let is_within = matches!(error, WriterError::Start { .. });
                        assert!(
                            is_within || text.contains("none of them is stored"),
                            "{text}"
                        );
                        resume()
                    };
                    writer = builder.build().unwrap_or_else(resumed);
                    at = writer.start() as usize * slice;
                }
                Step::Session if again > 0 => {
                    again -= 1;
                    writer.discard_partial_slice();
                    writer.finish().unwrap();
                    writer = resume();
                    at = writer.start() as usize * slice;
                }
                Step::Again | Step::Session => {}
            }
        }
        let reports = writer.finish().unwrap();
        assert_eq!(reports[0].finished_slices, self.slices as u64);
        assert_eq!(writer.finish().unwrap(), reports);
        let error = writer.append_bytes(&[0]).unwrap_err();
        assert!(matches!(error, WriterError::Finished { .. }), "{error}");
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => (1_usize..40).prop_map(Step::Bytes),
        4 => (1_usize..6).prop_map(Step::Slices),
        1 => (1_usize..200).prop_map(Step::TryBytes),
        1 => Just(Step::Flush),
        1 => Just(Step::Again),
        1 => Just(Step::Session),
    ];
    // The last one always makes progress.
    prop::collection::vec(step, 0..5).prop_map(|mut steps| {
        steps.push(Step::Slices(1));
        steps
    })
}

/// The same image, written on these engines.
pub(crate) fn on(image: Image, engines: Engines, backend: Backend) -> Image {
    Image {
        on: Some((engines, backend)),
        ..image
    }
}

pub(crate) fn images() -> impl Strategy<Value = Image> {
    let axes = select(vec!["yx", "zyx", "tyx", "cyx", "tzyx", "tczyx"]);
    let kinds = (select(&oracle::KINDS[..]), select(&Reduction::ALL[..]))
        .prop_filter("the kind has it", |(kind, reduction)| {
            kind.can(reduction.of_engine())
        });
    (axes, kinds).prop_flat_map(|(axes, (kind, reduction))| {
        let rank = axes.len();
        let factor = prop_oneof![1 => Just(1_u64), 3 => Just(2_u64)];
        (
            prop::collection::vec(factor, rank),
            prop::collection::vec(1_u64..(12 - 2 * rank as u64).max(3), rank - 1),
            prop::collection::vec(1_u64..4, rank),
            prop::collection::vec(1_u64..4, rank),
            0_usize..14,
            prop::option::of(1_usize..5),
            prop::option::of(1_usize..9),
            steps(),
        )
            .prop_flat_map(
                move |(factors, inner, subchunk, counts, slices, levels, epochs, steps)| {
                    let count = slices * inner.iter().product::<u64>() as usize;
                    let axes = axes.chars().zip(&factors).map(|(name, factor)| {
                        Axis::by_name(&name.to_string())
                            .unwrap()
                            .with_factor(*factor)
                    });
                    let divides = factors[1..].contains(&2);
                    let image = Image {
                        on: None,
                        kind,
                        reduction,
                        axes: axes.collect(),
                        levels: levels.or((!divides).then_some(3)),
                        inner,
                        subchunk,
                        counts,
                        slices,
                        elements: Vec::new(),
                        steps,
                        epochs,
                    };
                    oracle::elements(kind, count).prop_map(move |elements| Image {
                        elements,
                        ..image.clone()
                    })
                },
            )
    })
}

#[test]
fn all_levels_are_what_an_oracle_makes_of_the_whole_array() {
    let config = zarrs_cuda_testing::effort::config(60);
    proptest!(config, |(image in images())| {
        let store = Arc::new(MemoryStore::new());
        image.write(&store);
        image.check(&store);
    });
}

#[test]
fn levels_of_stored_arrays() {
    let config = zarrs_cuda_testing::effort::config(24);
    let cancel = Cancel::new();
    proptest!(config, |(image in images(), parts in 1_u64..4, cut in any::<prop::sample::Index>())| {
        let slice = image.slice();
        let append = |store: &Arc<MemoryStore>, range: std::ops::Range<usize>| {
            let array = Array::open(store.clone(), "/image/0").unwrap();
            let mut given = image.array(store);
            given.set_shape(array.shape().to_vec()).unwrap();
            let shard = image.subchunk[0] * image.counts[0];
            let start = array.shape()[0] / shard * shard;
            let mut writer = ArrayWriter::builder(&given).with_start(start).build().unwrap();
            writer.append_bytes(&image.elements[start as usize * slice..range.end * slice]).unwrap();
            writer.finish().unwrap();
        };
        // At once, and again when the array has grown.
        let store = Arc::new(MemoryStore::new());
        image.array(&store).store_metadata().unwrap();
        let first = cut.index(image.slices + 1);
        append(&store, 0..first);
        image.builder(&store).write_lower_levels(&cancel).unwrap();
        append(&store, first..image.slices);
        image.builder(&store).write_lower_levels(&cancel).unwrap();
        image.check(&store);
        image.builder(&store).write_lower_levels(&cancel).unwrap();
        image.check(&store);

        // In parts, in any order, and some of them twice.
        let store = Arc::new(MemoryStore::new());
        image.array(&store).store_metadata().unwrap();
        append(&store, 0..image.slices);
        for part in (0..parts).rev().chain([0]) {
            let parts = std::num::NonZeroU64::new(parts).unwrap();
            image.builder(&store).write_part_of_lower_levels(part, parts, &cancel).unwrap();
        }
        image.check(&store);
    });
}

/// An image of one byte for each element, with some of everything.
pub(crate) fn small() -> Image {
    let axes = ["z", "y", "x"].map(|name| Axis::by_name(name).unwrap());
    Image {
        on: None,
        kind: Elements::UInt8,
        reduction: Reduction::Mean,
        axes: axes.to_vec(),
        levels: Some(3),
        inner: vec![5, 6],
        subchunk: vec![1, 3, 3],
        counts: vec![2, 1, 2],
        slices: 13,
        elements: (0..13 * 30).map(|n| (n * 7 % 251) as u8).collect(),
        steps: vec![Step::Slices(1)],
        epochs: Some(1),
    }
}

#[test]
fn whatever_a_store_refuses_is_tried_again() {
    let image = small();
    let builder = |store: &Arc<Files>| image.builder(store).with_atomic_rename(store.clone());
    let (_directory, store) = files();
    let mut writer = builder(&store).build().unwrap();
    writer.append_bytes(&image.elements).unwrap();
    writer.finish().unwrap();
    let (requests, expected) = (store.requests().len(), snapshot(&store));
    let slice = image.slice();
    for (fault, number) in Fault::ALL
        .into_iter()
        .flat_map(|fault| (0..requests).map(move |n| (fault, n)))
    {
        let (_directory, store) = files();
        store.fail_at(number, fault);
        let mut failures = 0;
        let mut count = |error: WriterError| {
            failures += 1;
            assert!(
                failures < 2,
                "one {fault:?} of request {number}, and two errors: {error}"
            );
        };
        let mut writer = loop {
            match builder(&store).build() {
                Ok(writer) => break writer,
                Err(error) => count(error),
            }
        };
        let mut at = 0;
        while at < image.elements.len() {
            let before = writer.progress()[0].appended_bytes;
            let appended = writer.append_bytes(&image.elements[at..][..slice]);
            at += (writer.progress()[0].appended_bytes - before) as usize;
            if let Err(error) = appended {
                count(error);
                writer.flush().unwrap();
            }
        }
        while let Err(error) = writer.finish() {
            count(error);
        }
        assert!(
            snapshot(&store) == expected,
            "{fault:?} of request {number}"
        );
    }
}

#[test]
fn errors_name_the_level() {
    let image = small();
    let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
    let mut writer = image.builder(&store).build().unwrap();
    store.fail(|request| {
        request
            .key
            .starts_with("image/1/c")
            .then_some(Fault::Refused)
    });
    let error = loop {
        if let Err(error) = writer.append_bytes(&image.elements[..image.slice()]) {
            break error;
        }
    };
    assert!(
        matches!(error, WriterError::Level { level: 1, .. }),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .starts_with("level 1: cannot store the shard image/1/c/"),
        "{error}"
    );
}

#[test]
fn refused() {
    let image = small();
    let store = Arc::new(MemoryStore::new());
    let refused = |builder: MultiscaleBuilder<MemoryStore>, expected: &str| {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(
            store
                .size_key(&"image/zarr.json".try_into().unwrap())
                .unwrap(),
            None
        );
    };
    let axes = |names: &[&str]| -> Vec<Axis> {
        names
            .iter()
            .map(|name| Axis::by_name(name).unwrap())
            .collect()
    };
    let builder = || image.builder(&store);
    refused(
        builder().with_axes(axes(&["y", "x"])),
        "3 axes, and 2 were given",
    );
    refused(
        builder().with_axes(axes(&["z", "t", "x"])),
        "OME-Zarr 0.5 does not allow",
    );
    refused(
        builder().with_axes([
            Axis::space("z"),
            Axis::space("y").with_factor(3),
            Axis::space("x"),
        ]),
        "factor 3",
    );
    refused(builder().with_levels(0), "0 levels");
    refused(
        builder().with_level_shapes(3, [1, 1, 1], [1, 1, 1]),
        "level 3",
    );
    refused(
        builder().with_level_shapes(1, [1, 2, 2], [1, 3, 2]),
        "level 1",
    );
    refused(builder().with_start(2), "begin at 0 or before");
    refused(
        builder().with_omero(serde_json::json!({"channels": 1})),
        "OME-Zarr 0.5",
    );
    let root = image.array(&store);
    let root = root.builder().build(store.clone(), "/").unwrap();
    refused(
        MultiscaleWriter::builder(&root).with_axes(axes(&["z", "y", "x"])),
        "root of its store",
    );
    refused(MultiscaleWriter::builder(&image.array(&store)), "with_axes");

    // A level that is another array.
    let mut other = image.array(&store);
    other.set_shape(vec![0, 9, 9]).unwrap();
    other
        .builder()
        .build(store.clone(), "/image/1")
        .unwrap()
        .store_metadata()
        .unwrap();
    refused(builder(), "/image/1 is there, and has another shape");
    // One that only looks like it.
    store
        .erase(&"image/1/zarr.json".try_into().unwrap())
        .unwrap();
    let mut other = builder().levels().unwrap().remove(1);
    other.set_shape(vec![2, 3, 3]).unwrap();
    other.store_metadata().unwrap();
    refused(builder(), "does not name it");
    // Numbers without an order.
    let array = image.array(&store);
    let mut complex = array.builder();
    complex.data_type(data_type::complex64());
    complex.fill_value(FillValue::new(vec![0; 8]));
    let complex = complex.build(store.clone(), "/image/0").unwrap();
    refused(
        image.builder_of(&complex).with_reduction(Reduction::Median),
        "use one of mean, mode, decimate",
    );
}

/// A group that cannot be read is not taken for one that is not there.
#[test]
fn groups_that_cannot_be_read_stay() {
    let image = small();
    for (name, text, expected) in [
        ("zarr.json", "", "cannot be read"),
        (
            "zarr.json",
            r#"{"zarr_format": 3, "node_type": "gr"#,
            "cannot be read",
        ),
        (
            "zarr.json",
            r#"{"zarr_format": 3, "node_type": "group", "attributes": {"a": NaN}}"#,
            "cannot be read",
        ),
        (
            "zarr.json",
            r#"{"zarr_format": 3, "node_type": "group", "later": {"must_understand": true}}"#,
            "cannot be read",
        ),
        (".zgroup", r#"{"zarr_format": 2}"#, "Zarr v2"),
    ] {
        let key = StoreKey::new(format!("image/{name}")).unwrap();
        let store = Arc::new(MemoryStore::new());
        store.set(&key, text.into()).unwrap();
        let error = image.builder(&store).build().unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
        assert_eq!(store.get(&key).unwrap().unwrap(), text);
        // It became so after the plan was made.
        let store = Arc::new(MemoryStore::new());
        let plan = image.builder(&store).plan().unwrap();
        store.set(&key, text.into()).unwrap();
        if name == "zarr.json" {
            let error = image
                .builder(&store)
                .describe(&plan)
                .unwrap_err()
                .to_string();
            assert!(error.contains("is not replaced"), "{text}: {error}");
            assert_eq!(store.get(&key).unwrap().unwrap(), text);
        }
    }
}

#[test]
fn what_is_not_given_is_as_it_is_stored() {
    let image = small();
    let store = Arc::new(MemoryStore::new());
    let axes = [
        Axis::time("z")
            .with_unit("second")
            .with_scale(0.5)
            .with_factor(2),
        Axis::space("y").with_translation(3.25).with_factor(1),
        Axis::space("x").with_scale(1e-9).with_factor(2),
    ];
    let builder = image.builder(&store).with_axes(axes).with_name("cells");
    builder
        .with_omero(serde_json::json!({"channels": []}))
        .build()
        .unwrap();
    let stored = || {
        Group::open(store.clone(), "/image")
            .unwrap()
            .attributes()
            .clone()
    };
    let first = stored();
    let array = Array::open(store.clone(), "/image/0").unwrap();
    MultiscaleWriter::builder(&array)
        .with_levels(3)
        .build()
        .unwrap();
    assert_eq!(stored(), first);
}

/// The shares of a slice that threads copy, and whole blocks of windows.
#[test]
fn large_slices() {
    let image = Image {
        kind: Elements::UInt16,
        axes: ["t", "z", "y", "x"]
            .map(|name| Axis::by_name(name).unwrap().with_factor(2))
            .to_vec(),
        levels: Some(4),
        inner: vec![3, 67, 701],
        subchunk: vec![1, 2, 30, 300],
        counts: vec![2, 1, 2, 2],
        slices: 5,
        elements: (0..5_u32 * 3 * 67 * 701)
            .flat_map(|n| (n.wrapping_mul(2_654_435_761) >> 13).to_ne_bytes()[..2].to_vec())
            .collect(),
        steps: vec![Step::Slices(1), Step::Slices(3)],
        ..small()
    };
    let store = Arc::new(MemoryStore::new());
    image.write(&store);
    image.check(&store);
}

const ALL_AT_ONCE: NonZeroU64 = NonZeroU64::MIN;

#[test]
fn a_part_that_stops_anywhere_is_not_taken_for_whole_levels() {
    let (image, cancel) = (small(), Cancel::new());
    for number in 0.. {
        let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
        image.store_level_0(&store);
        store.fail(move |request| (request.number >= number).then_some(Fault::Refused));
        let part = image
            .builder(&store)
            .write_part_of_lower_levels(0, ALL_AT_ONCE, &cancel);
        store.work();
        image.builder(&store).write_lower_levels(&cancel).unwrap();
        image.check(&store);
        if part.is_ok() {
            println!("{number} requests");
            return;
        }
    }
}

/// All slices were given to the writers long before.
#[test]
fn cancelled_while_the_last_shards_are_stored() {
    let image = small();
    let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
    image.store_level_0(&store);
    let cancel = Cancel::new();
    let cancels = cancel.clone();
    store.fail(move |request| {
        if request.key.starts_with("image/1/c") {
            cancels.cancel();
            std::thread::sleep(Duration::from_millis(50));
        }
        None
    });
    let lower = image.builder(&store).write_lower_levels(&cancel);
    assert!(matches!(lower, Err(WriterError::Cancelled)), "{lower:?}");
    store.work();
    image
        .builder(&store)
        .write_lower_levels(&Cancel::new())
        .unwrap();
    image.check(&store);
}

#[test]
fn parts_of_an_array_that_was_cut() {
    let (image, cancel) = (small(), Cancel::new());
    let store = Arc::new(MemoryStore::new());
    image.write(&store);
    let mut array = Array::open(store.clone(), "/image/0").unwrap();
    array.set_shape(vec![7, 5, 6]).unwrap();
    array.store_metadata().unwrap();
    let image = Image {
        slices: 7,
        elements: image.elements[..7 * image.slice()].to_vec(),
        ..image
    };
    let part = |reduction| {
        let builder = image.builder_of(&array).with_reduction(reduction);
        builder.write_part_of_lower_levels(0, ALL_AT_ONCE, &cancel)
    };
    part(Reduction::Mean).unwrap();
    image.check(&store);
    let error = part(Reduction::Mode).unwrap_err().to_string();
    assert!(
        error.contains("were made with the reduction `mean`"),
        "{error}"
    );
    // All at once, by other rules.
    let builder = image.builder_of(&array).with_reduction(Reduction::Minimum);
    builder.write_lower_levels(&cancel).unwrap();
    let image = Image {
        reduction: Reduction::Minimum,
        ..image.clone()
    };
    image.check(&store);
}

#[test]
fn memory_is_shared() {
    let image = small();
    let store = Arc::new(MemoryStore::new());
    let writer = image.builder(&store).build().unwrap();
    let all = writer.memory_estimate();
    assert_eq!(image.builder(&store).memory_estimate().unwrap(), all);
    let sum = writer.with(|image| Ok(image.streams().iter().map(|w| w.memory.host).sum::<usize>()));
    let sum = sum.unwrap();
    // A begun slice of level 0, a kept slice for levels 1 and 2, and one that each of them made.
    assert_eq!(all.host - sum, 30 + (30 + 9) + (9 + 4));
}

/// The stored image, as one whose levels are made of the stored level 0.
fn stored<S>(image: &Image, store: &Arc<S>) -> Image
where
    S: ?Sized + zarrs_storage::ReadableWritableStorageTraits + 'static,
{
    let array = Array::open(store.clone(), "/image/0").unwrap();
    let elements: ArrayBytes<'_> = array.retrieve_array_subset(&array.subset_all()).unwrap();
    Image {
        slices: array.shape()[0] as usize,
        elements: elements.into_fixed().unwrap().into_owned(),
        ..image.clone()
    }
}

/// The same image, with other elements.
fn changed(image: &Image) -> Image {
    let elements = image.elements.iter().map(|element| element ^ 0x55);
    Image {
        elements: elements.collect(),
        ..image.clone()
    }
}

#[test]
fn an_image_stays_until_a_shard_is_replaced() {
    let image = small();
    let (old, new) = (image.clone(), changed(&image));
    let slice = image.slice();
    for start in [0, 2, 4, 12] {
        let (_directory, store) = files();
        old.write(&store);
        let before = snapshot(&store);
        let builder = || {
            image
                .builder_of(&opened(&image, &store))
                .with_start(start)
                .with_atomic_rename(store.clone())
        };
        drop(builder().build().unwrap());
        assert!(snapshot(&store) == before, "dropped, from {start}");
        let mut writer = builder().build().unwrap();
        writer.flush().unwrap();
        let reports = writer.finish().unwrap();
        assert!(reports.iter().all(|report| report.shards == 0));
        assert!(snapshot(&store) == before, "finished, from {start}");
        let mut writer = builder().build().unwrap();
        let at = start as usize * slice;
        writer.append_bytes(&new.elements[at..at + slice]).unwrap();
        writer.abort().unwrap();
        assert!(snapshot(&store) == before, "aborted, from {start}");
        let mut writer = builder().build().unwrap();
        writer.append_bytes(&new.elements[at..at + slice]).unwrap();
        writer.finish().unwrap();
        let slices = start as usize + 1;
        let now = stored(&image, &store);
        assert_eq!(now.slices, slices);
        assert!(now.elements[at..] == new.elements[at..at + slice]);
        assert!(now.elements[..at] == old.elements[..at]);
        now.check(&store);
    }
}

#[test]
fn a_writer_within_an_image_that_stops_anywhere_leaves_no_stale_level() {
    let image = small();
    let new = changed(&image);
    for start in [0, 4, 10] {
        for number in 0.. {
            let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
            image.write(&store);
            store.fail(move |request| (request.number >= number).then_some(Fault::Refused));
            let mut given = image.array(&store);
            given.set_shape(vec![13, 5, 6]).unwrap();
            let written = image.builder_of(&given).with_start(start).build();
            let written = written.and_then(|mut writer| {
                writer.append_bytes(&new.elements[start as usize * image.slice()..])?;
                writer.finish()
            });
            store.work();
            let now = stored(&image, &store);
            let builder = image.builder_of(&opened(&image, &store));
            builder.write_lower_levels(&Cancel::new()).unwrap();
            now.check(&store);
            if written.is_ok() {
                assert!(
                    now.elements
                        .ends_with(&new.elements[start as usize * image.slice()..])
                );
                break;
            }
        }
    }
}

/// An image whose shards have four slices.
fn deep() -> Image {
    Image {
        counts: vec![4, 1, 2],
        ..small()
    }
}

/// The first slices of an image.
fn first(image: &Image, slices: usize) -> Image {
    Image {
        slices,
        elements: image.elements[..slices * image.slice()].to_vec(),
        ..image.clone()
    }
}

#[test]
fn an_image_goes_on_inside_a_shard() {
    let image = deep();
    let (_directory, whole) = files();
    image.write(&whole);
    let expected = snapshot(&whole);
    for end in 0..=image.slices {
        let (_directory, store) = files();
        first(&image, end).write(&store);
        let before = snapshot(&store);
        let builder = || {
            let builder = image.builder_of(&opened(&image, &store));
            let builder = builder.with_atomic_rename(store.clone());
            builder.with_start(Resume)
        };
        drop(builder().build().unwrap());
        let mut writer = builder().build().unwrap();
        assert_eq!(writer.start(), end as u64);
        assert_eq!(
            writer.memory_estimate(),
            builder().memory_estimate().unwrap()
        );
        writer.append_bytes(&image.elements[..3]).unwrap();
        writer.abort().unwrap();
        assert!(snapshot(&store) == before, "dropped and aborted, at {end}");
        builder().build().unwrap().finish().unwrap();
        assert!(snapshot(&store) == before, "finished, at {end}");
        let mut writer = builder().build().unwrap();
        let rest = &image.elements[end * image.slice()..];
        writer.append_bytes(rest).unwrap();
        assert_eq!(writer.progress()[0].appended_bytes, rest.len() as u64);
        let reports = writer.finish().unwrap();
        assert_eq!(reports[0].raw_bytes, rest.len() as u64);
        assert_eq!(reports[0].first_slice, end as u64);
        image.check(&store);
        assert!(snapshot(&store) == expected, "from {end}");
    }
}

/// A level may have a last slice of half a window, which becomes wrong when level 0 grows.
#[test]
fn an_image_that_goes_on_and_stops_anywhere_leaves_no_stale_level() {
    let image = deep();
    for end in [1, 3, 6, 7] {
        for number in 0.. {
            let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
            first(&image, end).write(&store);
            let array = opened(&image, &store);
            store.fail(move |request| (request.number >= number).then_some(Fault::Refused));
            let builder = image.builder_of(&array).with_start(Resume);
            let builder = builder.with_metadata_interval(Duration::ZERO);
            let written = builder.build().and_then(|mut writer| {
                writer.append_bytes(&image.elements[end * image.slice()..])?;
                writer.finish()
            });
            store.work();
            let now = stored(&image, &store);
            assert!(now.slices >= end, "{} slices, after {end}", now.slices);
            assert!(image.elements.starts_with(&now.elements));
            // Whichever way another writer begins, if it may.
            let array = opened(&image, &store);
            for resumes in [false, true] {
                let mut builder = image.builder_of(&array);
                if resumes {
                    builder = builder.with_start(Resume);
                }
                let mut writer = match builder.build() {
                    Ok(writer) => writer,
                    Err(WriterError::Start { .. }) if !resumes => continue,
                    Err(error) => panic!("{error}"),
                };
                let at = writer.start() as usize * image.slice();
                writer.append_bytes(&image.elements[at..]).unwrap();
                writer.finish().unwrap();
                image.check(&store);
                break;
            }
            if written.is_ok() {
                break;
            }
        }
    }
}

/// Level 0 as it is stored.
fn opened<S>(image: &Image, store: &Arc<S>) -> Array<S>
where
    S: ?Sized + zarrs_storage::ReadableWritableStorageTraits + 'static,
{
    let stored = Array::open(store.clone(), "/image/0").unwrap();
    let mut array = image.array(store);
    array.set_shape(stored.shape().to_vec()).unwrap();
    array
}

#[cfg(feature = "filesystem")]
#[test]
fn levels_are_made_again_of_what_has_changed() {
    use zarrs::filesystem::FilesystemStore;

    let image = small();
    let new = changed(&image);
    for (writes_all, first) in [(true, 4_u64), (false, 0), (false, 8)] {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(FilesystemStore::new(directory.path()).unwrap());
        let builder = || {
            let array = opened(&image, &store);
            image.builder_of(&array).with_atomic_rename(store.clone())
        };
        let make = || {
            let reports = builder().write_lower_levels(&Cancel::new()).unwrap();
            stored(&image, &store).check(&store);
            reports[0].first_slice
        };
        image.array(&store).store_metadata().unwrap();
        if writes_all {
            let mut writer = builder().build().unwrap();
            writer.append_bytes(&image.elements).unwrap();
            writer.finish().unwrap();
        } else {
            let mut writer = ArrayWriter::builder(&opened(&image, &store))
                .build()
                .unwrap();
            writer.append_bytes(&image.elements).unwrap();
            writer.finish().unwrap();
            make();
        }
        // Complete shards of level 1 are kept: it has 7 slices, and shards of 2.
        assert_eq!(make(), 6);
        // Slices that come late, by any program.
        let array = opened(&image, &store);
        let mut writer = ArrayWriter::builder(&array)
            .with_start(first)
            .build()
            .unwrap();
        let at = first as usize * image.slice();
        let late = &new.elements[at..at + 2 * image.slice()];
        writer.append_bytes(late).unwrap();
        writer.finish().unwrap();
        assert!(make() <= first / 2);
        assert_eq!(make(), 6);
        // And shards that go.
        array.erase_chunk(&[first / 2, 0, 0]).unwrap();
        assert!(make() <= first / 2);
        assert_eq!(make(), 6);
    }
}
