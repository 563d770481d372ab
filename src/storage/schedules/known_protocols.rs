//! Protocols of which it is known what is wrong with them, or that nothing is: the explorer finds it.
//!
//! Most are those of frames of subchunks, in small: a shard is one byte for each of two chunks, a
//! frame holds `frame/CHUNK.VERSION.WRITER` with one byte each.

use bytes::Bytes;
use zarrs_storage::{StoreKey, StorePrefix};

use super::*;
use crate::store::key_locks::{KeyLocks, LocksKeys};
use crate::store::{Lists, Reads, Writes, now};

fn key(key: &str) -> StoreKey {
    StoreKey::new(key).unwrap()
}

fn objects(objects: &[(&str, &[u8])]) -> Objects {
    let objects = objects.iter();
    objects
        .map(|&(name, value)| (key(name), Bytes::copy_from_slice(value)))
        .collect()
}

#[allow(clippy::unnecessary_wraps, reason = "a `Value` is wrapped")]
fn value(byte: u8) -> Value {
    Some(vec![byte].into())
}

/// Reads all of the shard, changes one byte, and writes all of the shard.
async fn naive(seat: &Seat, at: usize, byte: u8) -> Result<()> {
    let shard = seat.get(&key("shard")).await?.unwrap();
    let mut shard = shard.to_vec();
    shard[at] = byte;
    seat.set(&key("shard"), shard.into()).await
}

fn both_bytes(ending: &Ending<'_>) -> std::result::Result<(), String> {
    let shard = &ending.objects[&key("shard")];
    for (chunk, byte) in shard.iter().enumerate() {
        judge_chunk(ending.log, chunk, &value(0), &value(*byte))?;
    }
    Ok(())
}

fn writers(locks: Option<[&KeyLocks; 2]>) -> Scenario<'_> {
    let mut scenario = Scenario::new(objects(&[("shard", &[0, 0])]), both_bytes);
    for chunk in 0..2 {
        scenario = scenario.actor(move |seat| async move {
            let write = async {
                let _lock = match locks {
                    Some(locks) => Some(seat.lock_key(locks[chunk], &key("shard")).await),
                    None => None,
                };
                naive(&seat, chunk, 7).await
            };
            seat.writing(chunk, value(7), write).await;
        });
    }
    scenario
}

#[test]
fn an_update_is_lost_if_two_read_and_write_all() {
    let violation = writers(None).explore().unwrap_err();
    assert!(
        violation.what.contains("after Some(b\"\\x07\")"),
        "{violation}"
    );
    // Both read, and then both write.
    let [a, b, c, d] = violation.schedule[..] else {
        panic!("{violation}");
    };
    assert!(a != b && c != d, "{violation}");
}

#[test]
fn turns_keep_updates() {
    let locks = [KeyLocks::default(), KeyLocks::default()];
    let explored = writers(Some([&locks[0], &locks[0]])).explore().unwrap();
    // Only the order of the two actors can differ.
    assert_eq!(explored.schedules, 2);
    // These are the locks of different processes.
    writers(Some([&locks[0], &locks[1]])).explore().unwrap_err();
}

#[test]
fn all_turns_are_one_after_the_others() {
    let locks = KeyLocks::default();
    let scenario = Scenario::new(objects(&[("shard", &[0, 0])]), both_bytes);
    let scenario = scenario.actor(|seat| {
        let locks = &locks;
        async move {
            let write = async {
                let _lock = seat.lock_key(locks, &key("shard")).await;
                naive(&seat, 0, 7).await
            };
            seat.writing(0, value(7), write).await;
        }
    });
    let scenario = scenario.actor(|seat| {
        let locks = &locks;
        async move {
            let write = async {
                let _lock = seat.lock_all_keys(locks).await;
                naive(&seat, 1, 7).await
            };
            seat.writing(1, value(7), write).await;
        }
    });
    assert_eq!(scenario.explore().unwrap().schedules, 2);
}

#[test]
fn schedules_are_counted_and_states_recognised() {
    // All orders are possible: three actors with two calls each have 6! / (2! 2! 2!) orders.
    let scenario = || {
        let mut scenario = Scenario::new(Objects::new(), |_| Ok(()));
        for at in 0..3 {
            scenario = scenario.actor(move |seat| async move {
                for byte in 0..2 {
                    let key = key(&format!("k{at}"));
                    seat.set(&key, vec![byte].into()).await.unwrap();
                }
            });
        }
        scenario
    };
    let explored = scenario().explore().unwrap();
    assert_eq!(explored.schedules, 90);
    // Where each of the three is.
    assert_eq!(explored.states, 27);
    let each = scenario().each_by_itself().explore().unwrap();
    assert_eq!(each.schedules, 90);
    // A crash before each call, or none: (1, 1), (2, 1), (3, 1), … of two actors.
    let scenario = || {
        let mut scenario = Scenario::new(Objects::new(), |_| Ok(()));
        for _ in 0..2 {
            scenario = scenario.actor(|seat| async move { drop(seat.get(&key("k")).await) });
            scenario = scenario.who_may_crash();
        }
        scenario
    };
    assert_eq!(scenario().explore().unwrap().schedules, 8);
    assert_eq!(scenario().each_by_itself().explore().unwrap().schedules, 8);
}

#[test]
fn who_comes_after_another() {
    let scenario = Scenario::new(Objects::new(), |ending| {
        // The second finds what the first wrote, or nothing if that one crashed.
        judge_chunk(
            ending.log,
            0,
            &None,
            &ending.objects.get(&key("k")).cloned(),
        )
    });
    let scenario = scenario
        .actor(|seat| async move {
            seat.writing(0, value(1), seat.set(&key("k"), value(1).unwrap()))
                .await;
        })
        .who_may_crash()
        .actor(|seat| async move { seat.reading(0, seat.get(&key("k"))).await })
        .after(0);
    assert_eq!(scenario.explore().unwrap().schedules, 2);
}

#[test]
fn who_waits_for_ever_is_found() {
    let locks = KeyLocks::default();
    let scenario = Scenario::new(Objects::new(), |_| Ok(()));
    let scenario = scenario.actor(|seat| {
        let locks = &locks;
        async move {
            let _first = seat.lock_key(locks, &key("k")).await;
            let _second = seat.lock_key(locks, &key("k")).await;
        }
    });
    let violation = scenario.explore().unwrap_err();
    assert!(
        violation.what.contains("wait for each other"),
        "{violation}"
    );
}

#[test]
fn half_a_value_is_seen_where_values_are_not_set_at_once() {
    let scenario = |torn| {
        Scenario::new(objects(&[("k", b"old")]), |ending| {
            let last = ending.objects.get(&key("k")).cloned();
            judge_chunk(ending.log, 0, &Some(Bytes::from_static(b"old")), &last)
        })
        .promises(Promises {
            torn,
            ..Promises::default()
        })
        .actor(|seat| async move {
            let new = Bytes::from_static(b"new!");
            seat.writing(0, Some(new.clone()), seat.set(&key("k"), new))
                .await;
        })
        .actor(|seat| async move { seat.reading(0, seat.get(&key("k"))).await })
    };
    scenario(None).explore().unwrap();
    scenario(Some("other")).explore().unwrap();
    let violation = scenario(Some("k")).explore().unwrap_err();
    assert!(violation.what.contains("b\"ne\""), "{violation}");
}

/// A file that is erased while it is written is gone.
#[test]
fn half_a_value_is_erased() {
    let scenario = |torn| {
        Scenario::new(Objects::new(), |ending| {
            judge_chunk(
                ending.log,
                0,
                &None,
                &ending.objects.get(&key("k")).cloned(),
            )
        })
        .promises(Promises {
            torn,
            ..Promises::default()
        })
        .actor(|seat| async move {
            let new = Bytes::from_static(b"new!");
            seat.writing(0, Some(new.clone()), seat.set(&key("k"), new))
                .await;
        })
        .actor(|seat| async move {
            if seat
                .get(&key("k"))
                .await
                .unwrap()
                .is_some_and(|value| value.len() < 4)
            {
                seat.erase(&key("k")).await.unwrap();
            }
        })
    };
    scenario(None).explore().unwrap();
    let violation = scenario(Some("k")).explore().unwrap_err();
    assert!(violation.what.contains("None after"), "{violation}");
}

/// Returns all results that a listing can have while another actor sets `b` and erases the key `erased`, one
/// after the other.
fn lists(listing: Listing, erased: &str, sets_first: bool) -> Vec<String> {
    let lists = Mutex::new(BTreeSet::new());
    let scenario = Scenario::new(objects(&[("f/a", b""), ("f/c", b"")]), |_| Ok(()));
    let scenario = scenario
        .promises(Promises {
            listing,
            ..Promises::default()
        })
        .actor(|seat| {
            let lists = &lists;
            async move {
                let prefix = StorePrefix::new("f/").unwrap();
                let keys = seat.list_prefix(&prefix).await.unwrap();
                let names = keys.iter().map(|key| &key.as_str()[2..]);
                lists.lock().unwrap().insert(names.collect::<String>());
            }
        })
        .actor(|seat| async move {
            for sets in [sets_first, !sets_first] {
                if sets {
                    seat.set(&key("f/b"), Bytes::new()).await.unwrap();
                } else {
                    seat.erase(&key(erased)).await.unwrap();
                }
            }
        });
    scenario.explore().unwrap();
    drop(scenario);
    lists.into_inner().unwrap().into_iter().collect()
}

#[test]
fn a_listing_that_takes_time() {
    use Listing::{Ascending, AtOnce, Checked, Descending};
    assert_eq!(lists(AtOnce, "f/a", false), ["ac", "bc", "c"]);
    assert_eq!(lists(AtOnce, "f/c", false), ["a", "ab", "ac"]);
    // A key that was erased and a key that was set later are both seen.
    assert_eq!(lists(Ascending, "f/a", false), ["abc", "ac", "bc", "c"]);
    assert_eq!(lists(Ascending, "f/c", false), ["a", "ab", "ac"]);
    assert_eq!(lists(Descending, "f/a", false), ["ac", "bc", "c"]);
    assert_eq!(lists(Descending, "f/c", false), ["a", "ab", "abc", "ac"]);
    // A key that was set before another one was erased is not seen, nor is the erased key.
    assert_eq!(lists(AtOnce, "f/a", true), ["abc", "ac", "bc"]);
    assert_eq!(lists(Checked, "f/a", true), ["abc", "ac", "bc", "c"]);
}

/// A chunk in a frame: its number, version and writer, and its key.
type Named = (usize, u32, u8, StoreKey);

async fn frame(seat: &Seat) -> Vec<Named> {
    let keys = seat
        .list_prefix(&StorePrefix::new("frame/").unwrap())
        .await
        .unwrap();
    let named = keys.into_iter().map(|key| {
        let parts: Vec<u32> = key.as_str()[6..]
            .split('.')
            .map(|part| part.parse().unwrap())
            .collect();
        (parts[0] as usize, parts[1], parts[2] as u8, key)
    });
    named.collect()
}

/// Names of their own for each write, or one for each chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    Fixed,
    Versioned,
}

async fn write(seat: &Seat, names: Names, chunk: usize, byte: u8, writer: u8) -> Result<()> {
    let mut version = 0;
    if names == Names::Versioned {
        let frame = frame(seat).await;
        let versions = frame
            .iter()
            .filter(|named| named.0 == chunk)
            .map(|named| named.1);
        version = versions.max().unwrap_or(0) + 1;
    }
    let key = key(&format!("frame/{chunk}.{version}.{writer}"));
    seat.set(&key, vec![byte].into()).await
}

async fn read(seat: &Seat, chunk: usize) -> Result<Value> {
    loop {
        let frame = frame(seat).await;
        let newest = frame.iter().filter(|named| named.0 == chunk).max();
        let Some(newest) = newest else {
            let shard = seat.get(&key("shard")).await?.unwrap();
            return Ok(Some(shard.slice(chunk..=chunk)));
        };
        if let Some(value) = seat.get(&newest.3).await? {
            return Ok(Some(value));
        }
    }
}

async fn consolidate(seat: &Seat, newest_last: bool) -> Result<()> {
    let mut frame = frame(seat).await;
    frame.sort_by_key(|named| (named.1, named.2));
    let mut newest = BTreeMap::new();
    for named in &frame {
        newest.insert(named.0, &named.3);
    }
    if newest.is_empty() {
        return Ok(());
    }
    let mut found = Vec::new();
    for (chunk, key) in newest {
        let Some(value) = seat.get(key).await? else {
            return Ok(());
        };
        found.push((chunk, value[0]));
    }
    let mut shard = seat.get(&key("shard")).await?.unwrap().to_vec();
    for (chunk, byte) in found {
        shard[chunk] = byte;
    }
    seat.set(&key("shard"), shard.into()).await?;
    if !newest_last {
        frame.reverse();
    }
    for named in frame {
        seat.erase(&named.3).await?;
    }
    Ok(())
}

/// With those who find `initial`. In the end somebody consolidates, alone.
fn frames<'a>(initial: &'a [(&'a str, &'a [u8])], before: [u8; 2]) -> Scenario<'a> {
    Scenario::new(objects(initial), move |ending| {
        let seat = Seat::alone(ending.objects.clone());
        for is_consolidated in [false, true] {
            if is_consolidated {
                now(consolidate(&seat, true)).unwrap();
            }
            for (chunk, &before) in before.iter().enumerate() {
                let last = now(read(&seat, chunk)).unwrap();
                judge_chunk(ending.log, chunk, &value(before), &last)?;
            }
        }
        Ok(())
    })
}

impl<'a> Scenario<'a> {
    fn writes(self, names: Names, chunk: usize, bytes: &'a [u8]) -> Self {
        let writer = self.actors.len() as u8;
        self.actor(move |seat| async move {
            for &byte in bytes {
                let write = write(
                    &seat,
                    names,
                    chunk,
                    byte,
                    if names == Names::Fixed { 0 } else { writer },
                );
                seat.writing(chunk, value(byte), write).await;
            }
        })
    }

    fn reads(self, chunk: usize) -> Self {
        self.actor(move |seat| async move { seat.reading(chunk, read(&seat, chunk)).await })
    }

    fn consolidates(self, newest_last: bool) -> Self {
        self.actor(move |seat| async move { consolidate(&seat, newest_last).await.unwrap() })
    }
}

const ONE: &[(&str, &[u8])] = &[("shard", &[0, 0]), ("frame/0.1.9", &[1])];
const TWO: &[(&str, &[u8])] = &[
    ("shard", &[0, 0]),
    ("frame/0.1.9", &[1]),
    ("frame/0.2.9", &[2]),
];

/// The consolidator erases what was written under a name that it had read before.
#[test]
fn fixed_names_lose_updates() {
    let initial: &[(&str, &[u8])] = &[("shard", &[0, 0]), ("frame/0.0.0", &[1])];
    let scenario = frames(initial, [1, 0])
        .writes(Names::Fixed, 0, &[2])
        .consolidates(true);
    let violation = scenario.explore().unwrap_err();
    assert!(
        violation
            .what
            .contains("chunk 0 is read as Some(b\"\\x01\") after"),
        "{violation}"
    );
}

#[test]
fn versioned_names_do_not() {
    let writers = frames(ONE, [1, 0])
        .writes(Names::Versioned, 0, &[2, 3])
        .writes(Names::Versioned, 1, &[5]);
    let scenarios = [
        writers.consolidates(true),
        frames(ONE, [1, 0])
            .writes(Names::Versioned, 0, &[2])
            .consolidates(true)
            .reads(0),
        frames(ONE, [1, 0])
            .writes(Names::Versioned, 0, &[2])
            .consolidates(true)
            .who_may_crash()
            .reads(0),
    ];
    let explored = scenarios.map(|scenario| scenario.explore().unwrap_or_else(|v| panic!("{v}")));
    // The first two are as many as another explorer of this protocol found.
    assert_eq!(
        explored.map(|explored| explored.schedules),
        [8_032, 864, 2_419]
    );
}

/// A consolidator that erases the newest version first, and crashes, brings the older one back.
#[test]
fn the_newest_version_goes_last() {
    let scenario = |newest_last| {
        frames(TWO, [2, 0])
            .consolidates(newest_last)
            .who_may_crash()
            .reads(0)
    };
    scenario(true).explore().unwrap();
    let violation = scenario(false).explore().unwrap_err();
    assert!(violation.what.contains("Some(b\"\\x01\")"), "{violation}");
}

/// One stores an older shard than the other did, which has erased the frame.
#[test]
fn two_consolidators_lose_updates() {
    let scenario = frames(ONE, [1, 0]).consolidates(true).consolidates(true);
    let violation = scenario
        .writes(Names::Versioned, 1, &[5])
        .explore()
        .unwrap_err();
    assert!(
        violation
            .what
            .contains("chunk 1 is read as Some(b\"\\0\") after"),
        "{violation}"
    );
    // Not if one begins when the other has crashed.
    let scenario = frames(ONE, [1, 0]).consolidates(true).who_may_crash();
    let scenario = scenario
        .consolidates(true)
        .after(0)
        .writes(Names::Versioned, 1, &[5]);
    scenario.explore().unwrap();
}

/// The recognition of states changes neither the violation that is found nor the number of orders.
#[test]
fn with_states_and_without() {
    let scenario = || {
        let scenario = frames(TWO, [2, 0]).writes(Names::Versioned, 0, &[3]);
        scenario.consolidates(true).who_may_crash()
    };
    let with = scenario().explore().unwrap();
    let without = scenario().each_by_itself().explore().unwrap();
    assert_eq!(with.schedules, without.schedules);
    let scenario = || {
        let scenario = frames(TWO, [2, 0]).consolidates(false).who_may_crash();
        scenario.reads(0)
    };
    let with = scenario().explore().unwrap_err();
    let without = scenario().each_by_itself().explore().unwrap_err();
    assert_eq!(with.schedule, without.schedule);
}
