//! The requests of a read into the memory of a device: as many at once as the option says, in few rounds.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use serde_json::json;
use zarrs::storage::byte_range::ByteRangeIterator;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{MaybeBytesIterator, ReadableStorageTraits, StorageError, StoreKey};

use super::reading::{OnDevice, array_of, bytes, bytes_of, fill, options};
use super::*;
use crate::reader::ArrayReader;

/// A store that answers in rounds: when as many requests wait as it was told, or when no more come.
#[derive(Debug)]
struct Rounds {
    inner: Arc<MemoryStore>,
    at_once: usize,
    state: Mutex<Counted>,
    answered: Condvar,
}

#[derive(Debug, Default)]
struct Counted {
    requests: usize,
    waiting: usize,
    most: usize,
    rounds: usize,
}

/// The time after which no more requests come.
const NO_MORE: Duration = Duration::from_millis(1500);

impl ReadableStorageTraits for Rounds {
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        let mut state = self.state.lock().expect("no panic");
        state.requests += 1;
        state.waiting += 1;
        state.most = state.most.max(state.waiting);
        let round = state.rounds;
        if state.waiting < self.at_once {
            let waited = self
                .answered
                .wait_timeout_while(state, NO_MORE, |state| state.rounds == round);
            state = waited.expect("no panic").0;
        }
        if state.rounds == round {
            (state.waiting, state.rounds) = (0, round + 1);
            self.answered.notify_all();
        }
        drop(state);
        self.inner.get_partial_many(key, byte_ranges)
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.inner.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

#[test]
fn as_many_requests_wait_as_the_option_says() {
    let on = OnDevice::new(Schedule::Latest);
    let codecs = json!([bytes("little")]);
    let store = Arc::new(MemoryStore::new());
    fill(&store, &codecs);
    let array = array_of(&store, &codecs, options(), on.engines.clone());
    let subset = array.subset_all();
    let expected: Vec<u16> = array.retrieve_array_subset(&subset).expect("reads");
    for at_once in [1, 3, 8] {
        let rounds = Arc::new(Rounds {
            inner: store.clone(),
            at_once,
            state: Mutex::default(),
            answered: Condvar::new(),
        });
        let slow = array.with_storage(rounds.clone());
        let reader = ArrayReader::builder(&slow).with_requests(at_once).build();
        let reader = reader.expect("suits");
        let tensor = reader.read_device(&subset).expect("reads");
        assert!(on.bytes(&tensor) == bytes_of(&expected));
        let counted = rounds.state.lock().expect("no panic");
        assert_eq!(counted.most, at_once, "{counted:?}");
        // A request for the index of each of 18 shards, and one for the subchunks of all shards but an absent one.
        assert!(counted.requests >= 18 + 17, "{counted:?}");
        let most = 1 + counted.requests.div_ceil(at_once);
        assert!(counted.rounds <= most, "{counted:?}");
    }
    drop(array);
    on.end();
}
