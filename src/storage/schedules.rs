//! Every order in which the calls of a few actors can take effect in a store, crashes among them.
//!
//! An actor is a future over a [`Seat`], which is a store in memory. Each call waits once before it
//! takes effect, so that whoever polls the actors decides whose call comes next: [`Scenario::explore`]
//! tries all orders, one after the other. After each of them, the store and the log of what the actors
//! did are judged.
//!
//! Two orders that lead to the same state have the same future. A state is what the store holds, what
//! each actor that is still there was answered by the store (it does nothing but by these answers),
//! and what the log says of each chunk; it is explored once, and the orders that go through it are counted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::future::Future;
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

use crate::store::ranges::within;
use crate::store::turns::{TakesTurns, Turns};
use crate::store::{Lists, Reads, Writes};

type Result<T> = std::result::Result<T, StorageError>;

/// What a store holds.
pub(super) type Objects = BTreeMap<StoreKey, Bytes>;

/// What a chunk holds; `None` is nothing.
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

/// How a listing comes back that fails, and does not say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    /// Without any key.
    Empty,
    /// Without the last key.
    Short,
}

/// What a store promises.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Promises {
    pub(super) listing: Listing,
    /// Keys that contain this text are not set at once: half of the value is seen first.
    pub(super) torn: Option<&'static str>,
    /// Of several requests in any order, the last is done first.
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
    /// What a listing that fails silently leaves of `keys`.
    fn fail(&self, keys: &mut StoreKeys) {
        match self.silent {
            Some((Silence::Empty, _)) => keys.clear(),
            Some((Silence::Short, _)) => drop(keys.pop()),
            None => {}
        }
    }
}

/// What an actor did, as far as it matters to others.
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

/// A turn, as one of an adapter: of these [`Turns`], for this shard or all of them.
type TurnId = (usize, Option<StoreKey>);

#[derive(Default)]
struct World {
    objects: Objects,
    promises: Promises,
    log: Vec<Event>,
    places: Vec<Place>,
    turns: BTreeSet<TurnId>,
    /// How many listings have failed silently.
    silences: usize,
}

/// What is known of an actor.
#[derive(Default)]
struct Place {
    /// Of all that the store answered.
    answers: DefaultHasher,
    /// What begins with its next call.
    begun: Vec<Event>,
    /// The turn that it waits for.
    waits_for: Option<TurnId>,
    /// It is about to call the store. Otherwise it waits for something else, which wakes it.
    calls: bool,
    /// Its next call is a listing.
    lists: bool,
    /// Its next call is a listing that fails silently.
    is_silent: bool,
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

/// Waits once.
struct Once(bool);

impl Future for Once {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if mem::replace(&mut self.0, false) {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }
}

impl Seat {
    /// A store that holds `objects`, for one who is alone: no call waits.
    pub(super) fn alone(objects: Objects) -> Self {
        let world = World {
            objects,
            ..World::default()
        };
        Self {
            world: Arc::new(Mutex::new(world)),
            number: None,
        }
    }

    /// What the store holds.
    pub(super) fn objects(&self) -> Objects {
        self.world().objects.clone()
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call takes effect, when it is the actor's turn.
    async fn call<T: Hash>(&self, effect: impl FnOnce(&mut World) -> T) -> T {
        if let Some(number) = self.number {
            self.world().places[number].calls = true;
        }
        Once(self.number.is_some()).await;
        let mut world = self.world();
        if let Some(number) = self.number {
            world.places[number].calls = false;
        }
        world.begin(self.number);
        let answer = effect(&mut world);
        if let Some(number) = self.number {
            answer.hash(&mut world.places[number].answers);
        }
        answer
    }

    /// Replace the value of `to` by that of `from`, which is no more, in one moment.
    pub(super) async fn rename(&self, from: &StoreKey, to: &StoreKey) -> Result<()> {
        let is_done = self.call(|world| {
            let value = world.objects.remove(from);
            value
                .map(|value| world.objects.insert(to.clone(), value))
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

    /// What concerns `chunk` went wrong, which it should not.
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

    fn keys(&self, prefix: &StorePrefix) -> StoreKeys {
        let keys = self.objects.keys().filter(|key| key.has_prefix(prefix));
        keys.cloned().collect()
    }

    /// The key with `prefix` that follows `last` in the order of a listing.
    fn next_key(&self, prefix: &StorePrefix, last: Option<&StoreKey>) -> Option<StoreKey> {
        let is_within = |key: &&StoreKey| key.has_prefix(prefix);
        let keys = self.objects.keys();
        if let Listing::Hashed(seed) = self.promises.listing {
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
        let next = if self.promises.listing == Listing::Descending {
            keys.rev()
                .filter(is_within)
                .find(|key| last.is_none_or(|last| *key < last))
        } else {
            let from = last.map_or(Bound::Unbounded, Bound::Excluded);
            let keys = self.objects.range::<StoreKey, _>((from, Bound::Unbounded));
            keys.map(|(key, _)| key).find(is_within)
        };
        next.cloned()
    }
}

impl Seat {
    /// The places of `keys`, in the order in which they are asked for.
    fn order(&self, keys: &[StoreKey]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..keys.len()).collect();
        if self.world().promises.backwards {
            order.reverse();
        }
        order
    }
}

impl World {
    /// Parts of a value; the size of a value that does not have them. What is answered is all that an
    /// actor knows: not the rest of the value.
    fn parts(
        &self,
        key: &StoreKey,
        ranges: &[ByteRange],
    ) -> Option<std::result::Result<Vec<Bytes>, u64>> {
        let value = self.objects.get(key)?;
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
        Some(parts.ok_or(len))
    }
}

impl Reads for Seat {
    async fn get(&self, key: &StoreKey) -> Result<Option<Bytes>> {
        Ok(self.call(|world| world.objects.get(key).cloned()).await)
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
            match self.call(|world| world.parts(key, ranges)).await {
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
        let len = self.call(|world| world.objects.get(key).map(Bytes::len));
        Ok(len.await.map(|len| len as u64))
    }
}

impl Writes for Seat {
    async fn set(&self, key: &StoreKey, value: Bytes) -> Result<()> {
        let torn = self.world().promises.torn;
        if self.number.is_none() || !torn.is_some_and(|torn| key.as_str().contains(torn)) {
            self.call(|world| drop(world.objects.insert(key.clone(), value)))
                .await;
            return Ok(());
        }
        let half = value.slice(..value.len() / 2);
        self.call(|world| drop(world.objects.insert(key.clone(), half.clone())))
            .await;
        self.call(|world| {
            // Of a file that was erased meanwhile nothing is found, although it is written.
            if let Some(object) = world.objects.get_mut(key)
                && *object == half
            {
                *object = value;
            }
        })
        .await;
        Ok(())
    }

    fn writes_ranges(&self) -> bool {
        true
    }

    async fn set_ranges(&self, key: &StoreKey, values: Vec<(u64, Bytes)>) -> Result<()> {
        self.call(|world| {
            let mut object = world
                .objects
                .get(key)
                .map_or_else(Vec::new, |object| object.to_vec());
            for (offset, value) in values {
                let range = offset as usize..offset as usize + value.len();
                object.resize(object.len().max(range.end), 0);
                object[range].copy_from_slice(&value);
            }
            world.objects.insert(key.clone(), object.into());
        })
        .await;
        Ok(())
    }

    async fn erase(&self, key: &StoreKey) -> Result<()> {
        self.call(|world| drop(world.objects.remove(key))).await;
        Ok(())
    }

    async fn erase_each(&self, keys: &[StoreKey]) -> Result<()> {
        for at in self.order(keys) {
            self.erase(&keys[at]).await?;
        }
        Ok(())
    }

    async fn erase_prefix(&self, prefix: &StorePrefix) -> Result<()> {
        self.call(|world| world.objects.retain(|key, _| !key.has_prefix(prefix)))
            .await;
        Ok(())
    }
}

impl Lists for Seat {
    async fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys> {
        let listing = self.world().promises.listing;
        let Some(number) = self.number else {
            return Ok(self.call(|world| world.keys(prefix)).await);
        };
        if listing == Listing::AtOnce {
            self.world().places[number].lists = true;
            let listed = self.call(|world| {
                let mut keys = world.keys(prefix);
                world.places[number].lists = false;
                if mem::take(&mut world.places[number].is_silent) {
                    world.promises.fail(&mut keys);
                }
                keys
            });
            return Ok(listed.await);
        }
        let mut keys = StoreKeys::new();
        if listing == Listing::Checked {
            for key in self.call(|world| world.keys(prefix)).await {
                if self.call(|world| world.objects.contains_key(&key)).await {
                    keys.push(key);
                }
            }
            return Ok(keys);
        }
        let mut is_silent = false;
        self.world().places[number].lists = true;
        while let Some(key) = self
            .call(|world| {
                let place = &mut world.places[number];
                place.lists = false;
                is_silent |= mem::take(&mut place.is_silent);
                world.next_key(prefix, keys.last())
            })
            .await
        {
            keys.push(key);
        }
        keys.sort();
        if is_silent {
            self.world().promises.fail(&mut keys);
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

/// A turn that ends when it is dropped.
pub(super) struct SeatTurn {
    world: Arc<Mutex<World>>,
    id: TurnId,
}

impl Drop for SeatTurn {
    fn drop(&mut self) {
        let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        world.turns.remove(&self.id);
    }
}

impl Seat {
    async fn take_turn(&self, turns: &Turns, shard: Option<&StoreKey>) -> SeatTurn {
        let id = (std::ptr::from_ref(turns).addr(), shard.cloned());
        if let Some(number) = self.number {
            self.world().places[number].waits_for = Some(id.clone());
        }
        let is_free = self.call(|world| {
            if let Some(number) = self.number {
                world.places[number].waits_for = None;
            }
            let is_free = world.is_free(&id);
            world.turns.insert(id.clone());
            is_free
        });
        assert!(is_free.await, "nobody is let in before it is free");
        SeatTurn {
            world: Arc::clone(&self.world),
            id,
        }
    }
}

impl World {
    fn is_free(&self, (turns, shard): &TurnId) -> bool {
        !self.turns.iter().any(|(other, taken)| {
            other == turns && (shard.is_none() || taken.is_none() || taken == shard)
        })
    }
}

impl TakesTurns for Seat {
    type Turn<'a> = SeatTurn;

    async fn turn(&self, turns: &Turns, shard: &StoreKey) -> SeatTurn {
        self.take_turn(turns, Some(shard)).await
    }

    async fn all_turns(&self, turns: &Turns) -> Vec<SeatTurn> {
        vec![self.take_turn(turns, None).await]
    }
}

/// What an actor does from here on.
pub(super) type Acting<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

struct Actor<'a> {
    act: Box<dyn Fn(Seat) -> Acting<'a> + 'a>,
    may_crash: bool,
    /// None of its listings fails silently.
    lists_well: bool,
    /// It begins when this one has ended or crashed.
    after: Option<usize>,
}

/// What there is when nobody does anything any more.
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
    /// States are not recognised: each order is tried by itself.
    each_by_itself: bool,
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The next call of this actor takes effect.
    Call(usize),
    /// The same; it is a listing, which fails and does not say so.
    Silent(usize),
    /// This actor does nothing any more.
    Crash(usize),
}

/// What was explored.
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

    /// The actor that was added last may crash, at each call.
    pub(super) fn who_may_crash(mut self) -> Self {
        self.actors.last_mut().expect("an actor").may_crash = true;
        self
    }

    /// No listing of the actor that was added last fails silently.
    pub(super) fn who_lists_well(mut self) -> Self {
        self.actors.last_mut().expect("an actor").lists_well = true;
        self
    }

    /// The actor that was added last begins when that with `number` has ended or crashed.
    pub(super) fn after(mut self, number: usize) -> Self {
        self.actors.last_mut().expect("an actor").after = Some(number);
        self
    }

    fn each_by_itself(mut self) -> Self {
        self.each_by_itself = true;
        self
    }

    /// Try all orders.
    ///
    /// # Errors
    /// The first after which something is wrong.
    pub(super) fn explore(&self) -> std::result::Result<Explored, Box<Violation>> {
        let mut exploration = Exploration {
            scenario: self,
            schedules: HashMap::new(),
            schedule: Vec::new(),
        };
        let schedules = exploration.explore(Run::new(self))?;
        Ok(Explored {
            schedules,
            states: exploration.schedules.len(),
        })
    }
}

/// Actors, in the middle of what they do.
struct Run<'s, 'a> {
    scenario: &'s Scenario<'a>,
    world: Arc<Mutex<World>>,
    /// `None` are those that have ended or crashed.
    acting: Vec<Option<Acting<'a>>>,
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

impl<'s, 'a> Run<'s, 'a> {
    fn new(scenario: &'s Scenario<'a>) -> Self {
        let world = Arc::new(Mutex::new(World {
            objects: scenario.objects.clone(),
            promises: scenario.promises,
            places: scenario.actors.iter().map(|_| Place::default()).collect(),
            ..World::default()
        }));
        let acting = scenario.actors.iter().enumerate().map(|(number, actor)| {
            let seat = Seat {
                world: Arc::clone(&world),
                number: Some(number),
            };
            Some((actor.act)(seat))
        });
        let acting = acting.collect();
        let mut run = Self {
            scenario,
            world,
            wakers: scenario.actors.iter().map(|_| Arc::default()).collect(),
            waiting: Vec::new(),
            acting,
        };
        for number in 0..run.acting.len() {
            run.proceed(number);
        }
        run
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To where the actor waits with its next call.
    fn proceed(&mut self, number: usize) {
        self.wakers[number].0.store(false, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&self.wakers[number]));
        let mut context = Context::from_waker(&waker);
        let acting = &mut self.acting[number];
        if acting
            .as_mut()
            .is_some_and(|acting| acting.as_mut().poll(&mut context).is_ready())
        {
            *acting = None;
        }
        let waits = self.acting[number].is_some() && !self.world().places[number].calls;
        if !waits {
            self.waiting.retain(|waiting| *waiting != number);
        } else if !self.waiting.contains(&number) {
            self.waiting.push(number);
        }
    }

    /// Whether an actor can go on.
    fn can_proceed(&self, world: &World, number: usize) -> bool {
        let place = &world.places[number];
        let has_turn = place
            .waits_for
            .as_ref()
            .is_none_or(|turn| world.is_free(turn));
        (place.calls && has_turn) || self.wakers[number].0.load(Ordering::SeqCst)
    }

    fn take(&mut self, choice: Choice) {
        match choice {
            Choice::Call(number) => self.proceed(number),
            Choice::Silent(number) => {
                let mut world = self.world();
                world.silences += 1;
                world.places[number].is_silent = true;
                drop(world);
                self.proceed(number);
            }
            // Turns that it had are free again, as those of a thread that panics.
            Choice::Crash(number) => self.acting[number] = None,
        }
    }

    fn choices(&self) -> Vec<Choice> {
        let world = self.world();
        let mut choices = Vec::new();
        let actors = self.scenario.actors.iter().enumerate();
        for (number, actor) in actors.filter(|&(number, _)| self.acting[number].is_some()) {
            if actor
                .after
                .is_some_and(|before| self.acting[before].is_some())
            {
                continue;
            }
            if self.can_proceed(&world, number) {
                choices.push(Choice::Call(number));
            }
            let silent = world.promises.silent.map_or(0, |(_, most)| most);
            let may_fail = world.places[number].lists && !actor.lists_well;
            if may_fail && world.silences < silent {
                choices.push(Choice::Silent(number));
            }
            if actor.may_crash {
                choices.push(Choice::Crash(number));
            }
        }
        choices
    }

    /// Of everything that the future depends on.
    fn state(&self) -> u128 {
        let world = self.world();
        let mut halves = [0_u64, 1].map(|half| {
            let mut hasher = DefaultHasher::new();
            half.hash(&mut hasher);
            world.objects.hash(&mut hasher);
            self.waiting.hash(&mut hasher);
            world.silences.hash(&mut hasher);
            for (acting, place) in self.acting.iter().zip(&world.places) {
                acting
                    .as_ref()
                    .map(|_| place.answers.finish())
                    .hash(&mut hasher);
            }
            // The order of what concerns different chunks matters to nobody.
            let mut log: Vec<&Event> = world.log.iter().collect();
            log.sort_by_key(|event| event.chunk());
            log.hash(&mut hasher);
            u128::from(hasher.finish())
        });
        halves[0] <<= 64;
        halves[0] | halves[1]
    }

    fn violation(&self, what: String, schedule: &[Choice]) -> Violation {
        let world = self.world();
        Violation {
            what,
            schedule: schedule.to_vec(),
            log: world.log.clone(),
            objects: world.objects.clone(),
        }
    }
}

struct Exploration<'s, 'a> {
    scenario: &'s Scenario<'a>,
    /// How many there are from each state on.
    schedules: HashMap<u128, u128>,
    /// How the present state was reached.
    schedule: Vec<Choice>,
}

impl<'s, 'a> Exploration<'s, 'a> {
    fn explore(&mut self, run: Run<'s, 'a>) -> std::result::Result<u128, Box<Violation>> {
        let state = run.state();
        if !self.scenario.each_by_itself
            && let Some(&schedules) = self.schedules.get(&state)
        {
            return Ok(schedules);
        }
        let choices = run.choices();
        if !choices
            .iter()
            .any(|choice| matches!(choice, Choice::Call(_)))
        {
            self.judge(&run)?;
        }
        let mut schedules = u128::from(choices.is_empty());
        // A future cannot be copied: but for the first choice, all is done again from the beginning.
        let mut run = Some(run);
        for choice in choices {
            let mut next = run.take().unwrap_or_else(|| {
                let mut next = Run::new(self.scenario);
                for &choice in &self.schedule {
                    next.take(choice);
                }
                next
            });
            next.take(choice);
            self.schedule.push(choice);
            schedules += self.explore(next)?;
            self.schedule.pop();
        }
        self.schedules.insert(state, schedules);
        Ok(schedules)
    }

    fn judge(&self, run: &Run<'s, 'a>) -> std::result::Result<(), Box<Violation>> {
        if run.acting.iter().any(Option::is_some) {
            let what = "those who are left wait for each other".to_owned();
            return Err(run.violation(what, &self.schedule).into());
        }
        let world = run.world();
        let ending = Ending {
            objects: &world.objects,
            log: &world.log,
        };
        let judged = (self.scenario.judge)(&ending);
        drop(world);
        judged.map_err(|what| run.violation(what, &self.schedule).into())
    }
}

/// Judge what was read of `chunk`, which held `initial`, was written by one writer at a time, and holds
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
    // What a read that goes on has to find at least.
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
