//! Every order in which the calls of a few actors can take effect in a store, crashes among them.
//!
//! An actor is a future over a [`Seat`], which is a store in memory. It waits at each call until it is
//! given the answer. So the explorer decides whose call comes next: [`Scenario::explore`] tries all orders,
//! one after the other. After each of them, the store and the log of what the actors did are judged.
//!
//! Two orders that lead to the same state have the same future. A state is what the store holds, what
//! each actor that is still there was answered by the store (it does nothing but by these answers),
//! and what the log says of each chunk; it is explored once, and the orders that go through it are counted.
//!
//! An actor does the same whenever it gets the same answers. So it is polled once for each row of answers,
//! and what it then did and will call is kept ([`Point`]). From there on, its calls are made without it: most
//! states are new ways to put together what is known of each actor. A future cannot be copied: to learn
//! what an actor does at another point, it begins anew and is given the answers that lead there.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::future::{Future, poll_fn};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;
use std::ops::Bound;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{
    StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix, StorePrefixes,
};

use crate::store::key_locks::{KeyLocks, LocksKeys};
use crate::store::ranges::within;
use crate::store::{Lists, Reads, Writes};

type Result<T> = std::result::Result<T, StorageError>;

/// The objects that a store holds.
pub(super) type Objects = BTreeMap<StoreKey, Bytes>;

/// The value that a chunk holds; `None` is nothing.
pub(super) type Value = Option<Bytes>;

/// How a listing takes effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Listing {
    /// In one moment.
    #[default]
    AtOnce,
    /// Key by key, in this order: others may set and erase keys meanwhile.
    Ascending,
    /// Key by key, the other way round.
    Descending,
    /// The names in one moment, and then, name by name, whether each is still there, as the walk of
    /// zarrs' filesystem store does.
    Checked,
    /// Key by key, in an order that is the same each time and says nothing: that of hashes, as filesystems
    /// keep their directories. Each seed is another order.
    Hashed(u64),
}

/// The answer of a listing that fails without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    /// The answer has no key.
    Empty,
    /// The answer lacks the last key.
    Short,
}

/// The promises of a store.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Promises {
    pub(super) listing: Listing,
    /// Keys that contain this text are not set at once: half of the value is seen first.
    pub(super) torn: Option<&'static str>,
    /// The last of several requests in any order is done first.
    pub(super) backwards: bool,
    /// The parts of a value that are asked for at once are read one after the other.
    pub(super) apart: bool,
    /// For parts of a value its size is asked for first, and then what they are of a value of that size,
    /// as zarrs' object stores do.
    pub(super) sized: bool,
    /// At most so many listings fail like this, whichever they are; `None` if a listing that fails is always an
    /// error, as the store says.
    pub(super) silent: Option<(Silence, usize)>,
}

impl Promises {
    /// Removes from `keys` the keys that a silently failing listing does not return.
    fn fail(&self, keys: &mut StoreKeys) {
        match self.silent {
            Some((Silence::Empty, _)) => keys.clear(),
            Some((Silence::Short, _)) => drop(keys.pop()),
            None => {}
        }
    }
}

/// An action of an actor, as far as it matters to others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Event {
    WriteBegins {
        chunk: usize,
        value: Value,
    },
    WriteEnds {
        chunk: usize,
    },
    ReadBegins {
        reader: usize,
        chunk: usize,
    },
    ReadEnds {
        reader: usize,
        chunk: usize,
        value: Value,
    },
    Failed {
        chunk: usize,
        what: String,
    },
}

impl Event {
    fn chunk(&self) -> usize {
        match self {
            Self::WriteBegins { chunk, .. }
            | Self::WriteEnds { chunk }
            | Self::ReadBegins { chunk, .. }
            | Self::ReadEnds { chunk, .. }
            | Self::Failed { chunk, .. } => *chunk,
        }
    }
}

/// Identifies a lock of an adapter: the [`KeyLocks`], and the shard, or `None` for all shards.
type LockId = (usize, Option<StoreKey>);

/// An answer of the store, and its hash.
#[derive(Clone)]
struct Answer {
    value: Arc<dyn Any + Send + Sync>,
    hash: u64,
}

/// The effect of a call on the objects of the store, and its answer. The `bool` says whether the call is a
/// listing that fails silently.
type Effect = Arc<dyn Fn(&mut Arc<Objects>, bool) -> Answer + Send + Sync>;

/// The call that an actor waits for.
#[derive(Clone)]
struct PendingCall {
    effect: Effect,
    /// The call takes effect when this lock is free.
    lock: Option<LockId>,
    is_listing: bool,
}

/// The state that the actors of a process share with the explorer, which polls them.
#[derive(Default)]
struct World {
    /// The objects of a store for one user, who is alone.
    objects: Arc<Objects>,
    promises: Promises,
    log: Vec<Event>,
    places: Vec<ActorStatus>,
    key_locks: BTreeSet<LockId>,
}

/// The status of an actor.
#[derive(Default)]
struct ActorStatus {
    /// The hash of all answers of the store to the actor.
    answers: DefaultHasher,
    /// The events that begin with the actor's next call.
    begun: Vec<Event>,
    /// The call of the store that the actor is about to make. Without a call, the actor waits to be woken.
    call: Option<PendingCall>,
    /// The answer to its call.
    answer: Option<Answer>,
}

/// A store, for one actor.
#[derive(Clone)]
pub(super) struct Seat {
    world: Arc<Mutex<World>>,
    /// `None` is somebody who is alone: nothing waits.
    number: Option<usize>,
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Seat {
    /// Returns a store that holds `objects`, for one who is alone: no call waits.
    pub(super) fn alone(objects: Objects) -> Self {
        let world = World {
            objects: objects.into(),
            ..World::default()
        };
        Self {
            world: Arc::new(Mutex::new(world)),
            number: None,
        }
    }

    /// Returns the objects that the store holds.
    pub(super) fn objects(&self) -> Objects {
        Objects::clone(&self.world().objects)
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a call that reads, when it is the actor's turn.
    async fn reads<T: Hash + Clone + Send + Sync + 'static>(
        &self,
        effect: impl Fn(&Objects) -> T + Send + Sync + 'static,
    ) -> T {
        let effect = move |objects: &mut Arc<Objects>, _| effect(objects);
        self.call(None, false, effect).await
    }

    /// Returns a call that changes what the store holds.
    async fn changes<T: Hash + Clone + Send + Sync + 'static>(
        &self,
        effect: impl Fn(&mut Objects) -> T + Send + Sync + 'static,
    ) -> T {
        let effect = move |objects: &mut Arc<Objects>, _| effect(Arc::make_mut(objects));
        self.call(None, false, effect).await
    }

    async fn call<T: Hash + Clone + Send + Sync + 'static>(
        &self,
        lock: Option<LockId>,
        is_listing: bool,
        effect: impl Fn(&mut Arc<Objects>, bool) -> T + Send + Sync + 'static,
    ) -> T {
        let Some(number) = self.number else {
            return effect(&mut self.world().objects, false);
        };
        let effect: Effect = Arc::new(move |objects, is_silent| {
            let value = effect(objects, is_silent);
            let mut hasher = DefaultHasher::new();
            value.hash(&mut hasher);
            let hash = hasher.finish();
            Answer {
                value: Arc::new(value),
                hash,
            }
        });
        self.world().places[number].call = Some(PendingCall {
            effect,
            lock,
            is_listing,
        });
        let answer = poll_fn(|_| match self.world().places[number].answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        });
        let answer = answer.await;
        let mut world = self.world();
        world.begin(self.number);
        let place = &mut world.places[number];
        place.call = None;
        answer.hash.hash(&mut place.answers);
        let value = answer.value.downcast_ref::<T>();
        value.expect("an answer to the same call").clone()
    }

    /// Replaces the value of `to` by that of `from`, which is no more, in one moment.
    pub(super) async fn rename(&self, from: &StoreKey, to: &StoreKey) -> Result<()> {
        let keys = (from.clone(), to.clone());
        let is_done = self.changes(move |objects| {
            let value = objects.remove(&keys.0);
            value
                .map(|value| objects.insert(keys.1.clone(), value))
                .is_some()
        });
        if is_done.await {
            return Ok(());
        }
        Err(StorageError::Other(format!(
            "cannot rename {from} to {to}: there is no {from}"
        )))
    }

    /// A write of `value` into a chunk. It begins with its first call.
    pub(super) async fn writing<E: fmt::Display>(
        &self,
        chunk: usize,
        value: Value,
        write: impl Future<Output = std::result::Result<(), E>>,
    ) {
        self.will_begin(Event::WriteBegins { chunk, value });
        match write.await {
            Ok(()) => self.happened(Event::WriteEnds { chunk }),
            Err(error) => self.failed(chunk, &error),
        }
    }

    /// A write of values into several chunks by one call. It begins with its first request.
    pub(super) async fn writing_all<E: fmt::Display>(
        &self,
        values: &[(usize, Value)],
        write: impl Future<Output = std::result::Result<(), E>>,
    ) {
        for (chunk, value) in values {
            let (chunk, value) = (*chunk, value.clone());
            self.will_begin(Event::WriteBegins { chunk, value });
        }
        match write.await {
            Ok(()) => {
                for &(chunk, _) in values {
                    self.happened(Event::WriteEnds { chunk });
                }
            }
            Err(error) => self.failed(0, &error),
        }
    }

    /// A read of a chunk. It begins with its first call.
    pub(super) async fn reading<E: fmt::Display>(
        &self,
        chunk: usize,
        read: impl Future<Output = std::result::Result<Value, E>>,
    ) {
        let reader = self.number.unwrap_or(usize::MAX);
        self.will_begin(Event::ReadBegins { reader, chunk });
        match read.await {
            Ok(value) => self.happened(Event::ReadEnds {
                reader,
                chunk,
                value,
            }),
            Err(error) => self.failed(chunk, &error),
        }
    }

    /// A read of chunks `0..chunks` by one call. It begins with its first request.
    pub(super) async fn reading_all<E: fmt::Display>(
        &self,
        chunks: usize,
        read: impl Future<Output = std::result::Result<Vec<Value>, E>>,
    ) {
        let reader = self.number.unwrap_or(usize::MAX);
        for chunk in 0..chunks {
            self.will_begin(Event::ReadBegins { reader, chunk });
        }
        match read.await {
            Ok(values) => {
                for (chunk, value) in values.into_iter().enumerate() {
                    self.happened(Event::ReadEnds {
                        reader,
                        chunk,
                        value,
                    });
                }
            }
            Err(error) => self.failed(0, &error),
        }
    }

    /// Notes that an operation on `chunk` failed, which it should not.
    pub(super) fn failed(&self, chunk: usize, error: &impl fmt::Display) {
        let what = error.to_string();
        self.happened(Event::Failed { chunk, what });
    }

    fn will_begin(&self, event: Event) {
        let mut world = self.world();
        match self.number {
            Some(number) => world.places[number].begun.push(event),
            None => world.log.push(event),
        }
    }

    fn happened(&self, event: Event) {
        let mut world = self.world();
        world.begin(self.number);
        world.log.push(event);
    }
}

impl World {
    fn begin(&mut self, number: Option<usize>) {
        if let Some(place) = number.and_then(|number| self.places.get_mut(number)) {
            self.log.append(&mut place.begun);
        }
    }
}

fn keys_with(objects: &Objects, prefix: &StorePrefix) -> StoreKeys {
    let keys = objects.keys().filter(|key| key.has_prefix(prefix));
    keys.cloned().collect()
}

impl Promises {
    /// Returns the key with `prefix` that follows `last` in the order of a listing.
    fn next_key(
        &self,
        objects: &Objects,
        prefix: &StorePrefix,
        last: Option<&StoreKey>,
    ) -> Option<StoreKey> {
        let is_within = |key: &&StoreKey| key.has_prefix(prefix);
        let keys = objects.keys();
        if let Listing::Hashed(seed) = self.listing {
            let place = |key: &StoreKey| {
                let mut hasher = DefaultHasher::new();
                (seed, key).hash(&mut hasher);
                (hasher.finish(), key.clone())
            };
            let last = last.map(place);
            let places = keys.filter(is_within).map(place);
            let next = places.filter(|place| last.as_ref().is_none_or(|last| place > last));
            return next.min().map(|(_, key)| key);
        }
        let next = if self.listing == Listing::Descending {
            keys.rev()
                .filter(is_within)
                .find(|key| last.is_none_or(|last| *key < last))
        } else {
            let from = last.map_or(Bound::Unbounded, Bound::Excluded);
            let keys = objects.range::<StoreKey, _>((from, Bound::Unbounded));
            keys.map(|(key, _)| key).find(is_within)
        };
        next.cloned()
    }
}

impl Seat {
    /// Returns the places of `keys`, in the order in which they are asked for.
    fn order(&self, keys: &[StoreKey]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..keys.len()).collect();
        if self.world().promises.backwards {
            order.reverse();
        }
        order
    }
}

/// Parts of a value; the size of a value that does not have them. What is answered is all that an
/// actor knows: not the rest of the value.
fn parts(value: &Bytes, ranges: &[ByteRange]) -> std::result::Result<Vec<Bytes>, u64> {
    let len = value.len() as u64;
    let cut = |range: &ByteRange| {
        if matches!(range, ByteRange::Suffix(suffix) if *suffix > len) {
            return None;
        }
        let range = range.to_range(len);
        let (start, end) = (usize::try_from(range.start), usize::try_from(range.end));
        let range = start.ok()?..end.ok()?;
        let is_within = range.start <= range.end && range.end <= value.len();
        is_within.then(|| value.slice(range))
    };
    let parts: Option<Vec<Bytes>> = ranges.iter().map(cut).collect();
    parts.ok_or(len)
}

impl Reads for Seat {
    async fn get(&self, key: &StoreKey) -> Result<Option<Bytes>> {
        let key = key.clone();
        Ok(self.reads(move |objects| objects.get(&key).cloned()).await)
    }

    async fn get_each_at_most(&self, keys: &[StoreKey], _: u64) -> Result<Vec<Option<Bytes>>> {
        let mut values = vec![None; keys.len()];
        for at in self.order(keys) {
            values[at] = self.get(&keys[at]).await?;
        }
        Ok(values)
    }

    async fn get_ranges(
        &self,
        key: &StoreKey,
        ranges: Vec<ByteRange>,
    ) -> Result<Option<Vec<Bytes>>> {
        let promises = self.world().promises;
        let apart = promises.apart && self.number.is_some();
        let ranges = if promises.sized && self.number.is_some() {
            let Some(len) = self.size(key).await? else {
                return Ok(None);
            };
            let ranges = ranges.into_iter().map(|range| {
                let bytes = within(range, len)?;
                let count = bytes.end - bytes.start;
                Ok(ByteRange::FromStart(bytes.start, Some(count)))
            });
            ranges.collect::<Result<_>>()?
        } else {
            ranges
        };
        let mut values = Vec::new();
        for ranges in ranges.chunks(if apart { 1 } else { ranges.len().max(1) }) {
            let call = (key.clone(), ranges.to_vec());
            let read = self.reads(move |objects| Some(parts(objects.get(&call.0)?, &call.1)));
            match read.await {
                None => return Ok(None),
                Some(Ok(more)) => values.extend(more),
                Some(Err(len)) => {
                    return Err(StorageError::Other(format!(
                        "{key} has {len} bytes, not {ranges:?}"
                    )));
                }
            }
        }
        Ok(Some(values))
    }

    async fn size(&self, key: &StoreKey) -> Result<Option<u64>> {
        let key = key.clone();
        let len = self.reads(move |objects| objects.get(&key).map(Bytes::len));
        Ok(len.await.map(|len| len as u64))
    }
}

impl Writes for Seat {
    async fn set(&self, key: &StoreKey, value: Bytes) -> Result<()> {
        let torn = self.world().promises.torn;
        let name = key.clone();
        if self.number.is_none() || !torn.is_some_and(|torn| key.as_str().contains(torn)) {
            self.changes(move |objects| drop(objects.insert(name.clone(), value.clone())))
                .await;
            return Ok(());
        }
        let half = value.slice(..value.len() / 2);
        let begun = half.clone();
        self.changes(move |objects| drop(objects.insert(name.clone(), begun.clone())))
            .await;
        let name = key.clone();
        self.changes(move |objects| {
            // A file that was erased meanwhile stays gone, although the write of it goes on.
            if let Some(object) = objects.get_mut(&name)
                && *object == half
            {
                *object = value.clone();
            }
        })
        .await;
        Ok(())
    }

    async fn set_each(&self, values: &[(StoreKey, Bytes)]) -> Result<()> {
        let keys: Vec<StoreKey> = values.iter().map(|(key, _)| key.clone()).collect();
        for at in self.order(&keys) {
            let (key, value) = &values[at];
            self.set(key, value.clone()).await?;
        }
        Ok(())
    }

    fn writes_ranges(&self) -> bool {
        true
    }

    async fn set_ranges(&self, key: &StoreKey, values: Vec<(u64, Bytes)>) -> Result<()> {
        let key = key.clone();
        self.changes(move |objects| {
            let mut object = objects
                .get(&key)
                .map_or_else(Vec::new, |object| object.to_vec());
            for (offset, value) in &values {
                let range = *offset as usize..*offset as usize + value.len();
                object.resize(object.len().max(range.end), 0);
                object[range].copy_from_slice(value);
            }
            objects.insert(key.clone(), object.into());
        })
        .await;
        Ok(())
    }

    async fn erase(&self, key: &StoreKey) -> Result<()> {
        let key = key.clone();
        self.changes(move |objects| drop(objects.remove(&key)))
            .await;
        Ok(())
    }

    async fn erase_each(&self, keys: &[StoreKey]) -> Result<()> {
        for at in self.order(keys) {
            self.erase(&keys[at]).await?;
        }
        Ok(())
    }

    async fn erase_prefix(&self, prefix: &StorePrefix) -> Result<()> {
        let prefix = prefix.clone();
        self.changes(move |objects| objects.retain(|key, _| !key.has_prefix(&prefix)))
            .await;
        Ok(())
    }
}

impl Lists for Seat {
    async fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys> {
        let promises = self.world().promises;
        let within = prefix.clone();
        if self.number.is_none() || promises.listing == Listing::AtOnce {
            let listed = self.call(None, true, move |objects, is_silent| {
                let mut keys = keys_with(objects, &within);
                if is_silent {
                    promises.fail(&mut keys);
                }
                keys
            });
            return Ok(listed.await);
        }
        let mut keys = StoreKeys::new();
        if promises.listing == Listing::Checked {
            for key in self.reads(move |objects| keys_with(objects, &within)).await {
                let name = key.clone();
                if self.reads(move |objects| objects.contains_key(&name)).await {
                    keys.push(key);
                }
            }
            return Ok(keys);
        }
        let mut fails = false;
        let mut begins = true;
        loop {
            let (within, last) = (prefix.clone(), keys.last().cloned());
            let next = self.call(None, mem::take(&mut begins), move |objects, is_silent| {
                let next = promises.next_key(objects, &within, last.as_ref());
                (next, is_silent)
            });
            let (next, is_silent) = next.await;
            fails |= is_silent;
            match next {
                Some(key) => keys.push(key),
                None => break,
            }
        }
        keys.sort();
        if fails {
            promises.fail(&mut keys);
        }
        Ok(keys)
    }

    async fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes> {
        let (mut keys, mut prefixes) = (StoreKeys::new(), StorePrefixes::new());
        for key in self.list_prefix(prefix).await? {
            match key.as_str()[prefix.as_str().len()..].split_once('/') {
                None => keys.push(key),
                Some((below, _)) => prefixes.push(StorePrefix::new(format!("{prefix}{below}/"))?),
            }
        }
        prefixes.dedup();
        Ok(StoreKeysPrefixes::new(keys, prefixes))
    }

    fn returns_each_error(&self) -> bool {
        self.world().promises.silent.is_none()
    }
}

/// A lock that ends when it is dropped.
pub(super) struct SeatLock {
    world: Arc<Mutex<World>>,
    id: LockId,
}

impl Drop for SeatLock {
    fn drop(&mut self) {
        let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        world.key_locks.remove(&self.id);
    }
}

impl Seat {
    async fn take_lock(&self, locks: &KeyLocks, shard: Option<&StoreKey>) -> SeatLock {
        let id = (std::ptr::from_ref(locks).addr(), shard.cloned());
        self.call(Some(id.clone()), false, |_, _| ()).await;
        self.world().key_locks.insert(id.clone());
        SeatLock {
            world: Arc::clone(&self.world),
            id,
        }
    }
}

impl LocksKeys for Seat {
    type Guard<'a> = SeatLock;

    async fn lock_key(&self, locks: &KeyLocks, shard: &StoreKey) -> SeatLock {
        self.take_lock(locks, Some(shard)).await
    }

    async fn lock_keys(&self, locks: &KeyLocks, shards: &[StoreKey]) -> Vec<SeatLock> {
        let mut taken = Vec::new();
        for shard in BTreeSet::from_iter(shards) {
            taken.push(self.take_lock(locks, Some(shard)).await);
        }
        taken
    }

    async fn lock_all_keys(&self, locks: &KeyLocks) -> Vec<SeatLock> {
        vec![self.take_lock(locks, None).await]
    }
}

/// The actions of an actor from here on.
pub(super) type Acting<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

struct Actor<'a> {
    act: Box<dyn Fn(Seat) -> Acting<'a> + 'a>,
    may_crash: bool,
    /// Whether no listing of the actor fails silently.
    lists_well: bool,
    /// The actor begins when the actor with this number has ended or crashed.
    after: Option<usize>,
}

/// The objects and the log when no actor does anything any more.
pub(super) struct Ending<'a> {
    pub(super) objects: &'a Objects,
    pub(super) log: &'a [Event],
}

type Judge<'a> = Box<dyn Fn(&Ending<'_>) -> std::result::Result<(), String> + 'a>;

/// Actors on a store, and who judges what they did.
pub(super) struct Scenario<'a> {
    objects: Objects,
    promises: Promises,
    actors: Vec<Actor<'a>>,
    judge: Judge<'a>,
    /// The actors are threads of one process. Otherwise each is a process.
    shares_memory: bool,
    /// States are not recognised: each order is tried by itself.
    each_by_itself: bool,
}

/// The action that happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Choice {
    /// The next call of this actor takes effect.
    PendingCall(usize),
    /// The same; it is a listing, which fails and does not say so.
    Silent(usize),
    /// This actor does nothing any more.
    Crash(usize),
}

/// The size of an exploration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Explored {
    /// Orders in which calls took effect, to the end.
    pub(super) schedules: u128,
    pub(super) states: usize,
}

/// An order of calls after which something is wrong.
#[derive(Debug)]
pub(super) struct Violation {
    pub(super) what: String,
    pub(super) schedule: Vec<Choice>,
    pub(super) log: Vec<Event>,
    pub(super) objects: Objects,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.what)?;
        writeln!(f, "schedule: {:?}", self.schedule)?;
        for event in &self.log {
            writeln!(f, "  {event:?}")?;
        }
        for (key, value) in &self.objects {
            writeln!(f, "  {key}: {value:?}")?;
        }
        Ok(())
    }
}

impl<'a> Scenario<'a> {
    pub(super) fn new(
        objects: Objects,
        judge: impl Fn(&Ending<'_>) -> std::result::Result<(), String> + 'a,
    ) -> Self {
        Self {
            objects,
            promises: Promises::default(),
            actors: Vec::new(),
            judge: Box::new(judge),
            shares_memory: false,
            each_by_itself: false,
        }
    }

    pub(super) fn promises(mut self, promises: Promises) -> Self {
        self.promises = promises;
        self
    }

    /// With another actor, who does not crash.
    pub(super) fn actor<F: Future<Output = ()> + 'a>(
        mut self,
        act: impl Fn(Seat) -> F + 'a,
    ) -> Self {
        self.actors.push(Actor {
            act: Box::new(move |seat| Box::pin(act(seat))),
            may_crash: false,
            lists_well: false,
            after: None,
        });
        self
    }

    /// Lets the actor that was added last crash at any of its calls.
    pub(super) fn who_may_crash(mut self) -> Self {
        self.actors.last_mut().expect("an actor").may_crash = true;
        self
    }

    /// Lets no listing of the actor that was added last fail silently.
    pub(super) fn who_lists_well(mut self) -> Self {
        self.actors.last_mut().expect("an actor").lists_well = true;
        self
    }

    /// Lets the actor that was added last begin when actor `number` has ended or crashed.
    pub(super) fn after(mut self, number: usize) -> Self {
        self.actors.last_mut().expect("an actor").after = Some(number);
        self
    }

    /// Notes that the actors know of each other by more than the store: they share caches, or wait for each
    /// other. The next call of an actor then depends on the answers that all actors got.
    pub(super) fn who_share_memory(mut self) -> Self {
        self.shares_memory = true;
        self
    }

    fn process_of(&self, number: usize) -> usize {
        if self.shares_memory { 0 } else { number }
    }

    fn each_by_itself(mut self) -> Self {
        self.each_by_itself = true;
        self
    }

    /// Tries all orders.
    ///
    /// # Errors
    /// The first after which something is wrong.
    pub(super) fn explore(&self) -> std::result::Result<Explored, Box<Violation>> {
        let mut exploration = Exploration {
            scenario: self,
            points: Vec::new(),
            next: HashMap::new(),
            runs: Vec::new(),
            schedules: HashMap::new(),
            schedule: Vec::new(),
        };
        let begin = exploration.begin();
        let schedules = exploration.explore(&begin)?;
        Ok(Explored {
            schedules,
            states: exploration.schedules.len(),
        })
    }
}

/// The actors of a process, in the middle of what they do.
struct Run<'a> {
    world: Arc<Mutex<World>>,
    /// The actors that have neither ended nor crashed.
    acting: BTreeMap<usize, Acting<'a>>,
    wakers: Vec<Arc<Woken>>,
    /// The actors that wait for something else than the store, in the order in which they began to.
    waiting: Vec<usize>,
}

/// Whether an actor was woken since it was last polled.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A choice, and the answer that the actor gets. It leads the actors of a process from one point to
/// the next.
#[derive(Clone)]
struct Step {
    choice: Choice,
    /// `None` if no call takes effect.
    answer: Option<Answer>,
}

/// The status of an actor at a point.
struct Here {
    answers: u64,
    call: Option<PendingCall>,
    is_woken: bool,
}

/// Where the actors of a process can be.
struct Point {
    /// The point before, and what led from there; `None` is where they begin.
    from: Option<(usize, Step)>,
    /// The actors that have neither ended nor crashed.
    acting: BTreeMap<usize, Here>,
    /// The locks that they have.
    key_locks: BTreeSet<LockId>,
    /// The events on the way from the point before.
    log: Vec<Event>,
    /// A hash of the parts of this point on which the future depends.
    fingerprint: u128,
}

impl<'a> Run<'a> {
    fn new(scenario: &Scenario<'a>, process: usize) -> Self {
        let actors = &scenario.actors;
        let mut run = Self {
            world: Arc::new(Mutex::new(World {
                promises: scenario.promises,
                places: actors.iter().map(|_| ActorStatus::default()).collect(),
                ..World::default()
            })),
            acting: BTreeMap::new(),
            wakers: actors.iter().map(|_| Arc::default()).collect(),
            waiting: Vec::new(),
        };
        let own = (0..actors.len()).filter(|&number| scenario.process_of(number) == process);
        for number in own.clone() {
            let seat = Seat {
                world: Arc::clone(&run.world),
                number: Some(number),
            };
            run.acting.insert(number, (actors[number].act)(seat));
        }
        own.for_each(|number| run.proceed(number));
        run
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls the actor, which goes on to its next call.
    fn proceed(&mut self, number: usize) {
        self.wakers[number].0.store(false, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&self.wakers[number]));
        let mut context = Context::from_waker(&waker);
        let acting = self.acting.get_mut(&number);
        if acting.is_some_and(|acting| acting.as_mut().poll(&mut context).is_ready()) {
            self.acting.remove(&number);
        }
        let waits = self.acting.contains_key(&number) && self.world().places[number].call.is_none();
        if !waits {
            self.waiting.retain(|waiting| *waiting != number);
        } else if !self.waiting.contains(&number) {
            self.waiting.push(number);
        }
    }

    fn take(&mut self, step: &Step) {
        match step.choice {
            Choice::PendingCall(number) | Choice::Silent(number) => {
                self.world().places[number].answer.clone_from(&step.answer);
                self.proceed(number);
            }
            // KeyLocks that it had are free again, as those of a thread that panics.
            Choice::Crash(number) => drop(self.acting.remove(&number)),
        }
    }

    /// Returns the point where the actors are.
    fn point(&self, from: Option<(usize, Step)>) -> Point {
        let mut world = self.world();
        let here = |&number: &usize| {
            let place = &world.places[number];
            let here = Here {
                answers: place.answers.finish(),
                call: place.call.clone(),
                is_woken: self.wakers[number].0.load(Ordering::SeqCst),
            };
            (number, here)
        };
        let acting: BTreeMap<usize, Here> = self.acting.keys().map(here).collect();
        let answers: Vec<_> = acting.iter().map(|(at, here)| (at, here.answers)).collect();
        Point {
            from,
            fingerprint: fingerprint(&(answers, &self.waiting)),
            key_locks: world.key_locks.clone(),
            log: mem::take(&mut world.log),
            acting,
        }
    }
}

/// Returns a hash so long that no two values have the same one by chance.
fn fingerprint(of: &impl Hash) -> u128 {
    let [high, low] = [0_u8, 1].map(|half| {
        let mut hasher = DefaultHasher::new();
        (half, of).hash(&mut hasher);
        u128::from(hasher.finish())
    });
    (high << 64) | low
}

/// Returns a hash of `log`. The order of events of different chunks does not change the hash.
fn fingerprint_of_log(log: &[Event]) -> u128 {
    let mut log: Vec<&Event> = log.iter().collect();
    log.sort_by_key(|event| event.chunk());
    fingerprint(&log)
}

/// The store, the log and the actors in the middle of an order of calls.
#[derive(Clone)]
struct ExploredState {
    objects: Arc<Objects>,
    log: Arc<Vec<Event>>,
    /// Hashes of the objects and of the log.
    fingerprints: [u128; 2],
    /// At which point each process is.
    at: Vec<usize>,
    /// How many listings have failed silently.
    silences: usize,
}

struct Exploration<'s, 'a> {
    scenario: &'s Scenario<'a>,
    /// The points of all processes.
    points: Vec<Point>,
    /// The point that follows a point, by the choice and the hash of the answer.
    next: HashMap<(usize, Choice, Option<u64>), usize>,
    /// Each process at one of its points.
    runs: Vec<Option<(usize, Run<'a>)>>,
    /// The number of schedules from each state on.
    schedules: HashMap<u128, u128>,
    /// The choices that led to the present state.
    schedule: Vec<Choice>,
}

impl Exploration<'_, '_> {
    fn begin(&mut self) -> ExploredState {
        let mut log = Vec::new();
        let processes =
            (0..self.scenario.actors.len()).map(|number| self.scenario.process_of(number));
        for process in 0..processes.max().map_or(0, |last| last + 1) {
            let run = Run::new(self.scenario, process);
            let point = run.point(None);
            log.extend(point.log.iter().cloned());
            self.runs.push(Some((process, run)));
            self.points.push(point);
        }
        ExploredState {
            fingerprints: [
                fingerprint(&self.scenario.objects),
                fingerprint_of_log(&log),
            ],
            objects: Arc::new(self.scenario.objects.clone()),
            log: Arc::new(log),
            at: (0..self.points.len()).collect(),
            silences: 0,
        }
    }

    /// Returns the status of an actor, if it has neither ended nor crashed.
    fn here(&self, state: &ExploredState, number: usize) -> Option<&Here> {
        let at = state.at[self.scenario.process_of(number)];
        self.points[at].acting.get(&number)
    }

    /// Returns the call of an actor, if it can take effect.
    fn call<'c>(&self, state: &ExploredState, here: &'c Here) -> Option<&'c PendingCall> {
        let is_free = |(locks, shard): &LockId| {
            let mut taken = state.at.iter().flat_map(|&at| &self.points[at].key_locks);
            !taken.any(|(other, taken)| {
                other == locks && (shard.is_none() || taken.is_none() || taken == shard)
            })
        };
        let call = here.call.as_ref();
        call.filter(|call| call.lock.as_ref().is_none_or(is_free))
    }

    fn choices(&self, state: &ExploredState) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (number, actor) in self.scenario.actors.iter().enumerate() {
            let is_there = |number| self.here(state, number).is_some();
            let Some(here) = self.here(state, number) else {
                continue;
            };
            if actor.after.is_some_and(is_there) {
                continue;
            }
            if self.call(state, here).is_some() || here.is_woken {
                choices.push(Choice::PendingCall(number));
            }
            let silent = self.scenario.promises.silent.map_or(0, |(_, most)| most);
            let lists = here.call.as_ref().is_some_and(|call| call.is_listing);
            if lists && !actor.lists_well && state.silences < silent {
                choices.push(Choice::Silent(number));
            }
            if actor.may_crash {
                choices.push(Choice::Crash(number));
            }
        }
        choices
    }

    /// Returns the state after `choice`.
    fn after(&mut self, state: &ExploredState, choice: Choice) -> ExploredState {
        let mut next = state.clone();
        let (Choice::PendingCall(number) | Choice::Silent(number) | Choice::Crash(number)) = choice;
        let is_silent = matches!(choice, Choice::Silent(_));
        next.silences += usize::from(is_silent);
        let here = self.here(state, number);
        let call = here.filter(|_| !matches!(choice, Choice::Crash(_)));
        let call = call.and_then(|here| self.call(state, here));
        let answer = call.map(|call| (call.effect)(&mut next.objects, is_silent));
        if !Arc::ptr_eq(&next.objects, &state.objects) {
            next.fingerprints[0] = fingerprint(&next.objects);
        }
        let at = &mut next.at[self.scenario.process_of(number)];
        *at = self.follow(*at, Step { choice, answer });
        let happened = &self.points[*at].log;
        if !happened.is_empty() {
            let log = Arc::make_mut(&mut next.log);
            log.extend_from_slice(happened);
            next.fingerprints[1] = fingerprint_of_log(log);
        }
        next
    }

    /// Returns the point to which `step` leads a process.
    fn follow(&mut self, from: usize, step: Step) -> usize {
        let hash = step.answer.as_ref().map(|answer| answer.hash);
        let next = (from, step.choice, hash);
        if let Some(&next) = self.next.get(&next) {
            return next;
        }
        let mut steps = Vec::new();
        let mut first = from;
        while let Some((before, step)) = &self.points[first].from {
            steps.push(step);
            first = *before;
        }
        // The first points are those of the processes.
        let process = first;
        let mut run = match self.runs[process].take() {
            Some((at, run)) if at == from => run,
            other => {
                // Resources that the actors have taken from the process are free again before the actors
                // begin anew.
                drop(other);
                let mut run = Run::new(self.scenario, process);
                steps.iter().rev().for_each(|step| run.take(step));
                let again = run.point(None).fingerprint;
                assert_eq!(again, self.points[from].fingerprint, "the same answers");
                run
            }
        };
        run.take(&step);
        let at = self.points.len();
        self.points.push(run.point(Some((from, step))));
        self.runs[process] = Some((at, run));
        self.next.insert(next, at);
        at
    }

    /// Returns a hash of the parts of `state` on which the future depends.
    fn fingerprint(&self, state: &ExploredState) -> u128 {
        let at = state.at.iter().map(|&at| self.points[at].fingerprint);
        fingerprint(&(state.fingerprints, at.collect::<Vec<_>>(), state.silences))
    }

    fn explore(&mut self, state: &ExploredState) -> std::result::Result<u128, Box<Violation>> {
        let fingerprint = self.fingerprint(state);
        if !self.scenario.each_by_itself
            && let Some(&schedules) = self.schedules.get(&fingerprint)
        {
            return Ok(schedules);
        }
        let choices = self.choices(state);
        if !choices
            .iter()
            .any(|choice| matches!(choice, Choice::PendingCall(_)))
        {
            self.judge(state)?;
        }
        let mut schedules = u128::from(choices.is_empty());
        for choice in choices {
            let next = self.after(state, choice);
            self.schedule.push(choice);
            schedules += self.explore(&next)?;
            self.schedule.pop();
        }
        self.schedules.insert(fingerprint, schedules);
        Ok(schedules)
    }

    fn judge(&self, state: &ExploredState) -> std::result::Result<(), Box<Violation>> {
        let (objects, log) = (&*state.objects, &*state.log);
        let judged = if state.at.iter().all(|&at| self.points[at].acting.is_empty()) {
            (self.scenario.judge)(&Ending { objects, log })
        } else {
            Err("those who are left wait for each other".to_owned())
        };
        judged.map_err(|what| {
            let violation = Violation {
                what,
                schedule: self.schedule.clone(),
                log: log.clone(),
                objects: objects.clone(),
            };
            violation.into()
        })
    }
}

/// Judges what was read of `chunk`, which held `initial`, was written by one writer at a time, and holds
/// `last` in the end. Each value is written once.
///
/// A read finds what was written by a write that ended before the read began and that no other
/// followed, or by one that began before the read ended; and no read finds older things than one that
/// ended before it began. What a writer that crashed wrote may be found or not.
pub(super) fn judge_chunk(
    log: &[Event],
    chunk: usize,
    initial: &Value,
    last: &Value,
) -> std::result::Result<(), String> {
    let mut values = vec![initial];
    // Number of the value that was written at least, and by those who began.
    let mut ended = 0;
    let mut seen = 0;
    // The number of the oldest value that each read may find, while the read goes on.
    let mut reads: HashMap<usize, usize> = HashMap::new();
    let find = |values: &[&Value], value: &Value, least: usize| match values
        .iter()
        .position(|written| *written == value)
    {
        None => Err(format!(
            "chunk {chunk} is read as {value:?}, which nobody wrote"
        )),
        Some(found) if found < least => {
            let newer = values[least];
            Err(format!(
                "chunk {chunk} is read as {value:?} after {newer:?}"
            ))
        }
        Some(found) => Ok(found),
    };
    for event in log.iter().filter(|event| event.chunk() == chunk) {
        match event {
            Event::WriteBegins { value, .. } => {
                if values.contains(&value) {
                    return Err(format!(
                        "the scenario writes {value:?} into chunk {chunk} twice"
                    ));
                }
                values.push(value);
            }
            Event::WriteEnds { .. } => ended = values.len() - 1,
            Event::ReadBegins { reader, .. } => {
                reads.insert(*reader, ended.max(seen));
            }
            Event::ReadEnds { reader, value, .. } => {
                let least = reads.remove(reader).unwrap_or(0);
                seen = seen.max(find(&values, value, least)?);
            }
            Event::Failed { what, .. } => return Err(format!("chunk {chunk}: {what}")),
        }
    }
    find(&values, last, ended.max(seen)).map(drop)
}

mod known_protocols;
#[cfg(feature = "async")]
mod partial_encoders;
