//! Who gets a turn, when, and who does not.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::*;

const LONG: Duration = Duration::from_mins(1);
const SHORT: Duration = Duration::from_millis(20);

fn alone(number: u64) -> [NameToTake; 1] {
    [(Name::Index(number), Mode::Alone)]
}

fn shared(number: u64) -> [NameToTake; 1] {
    [(Name::Index(number), Mode::Shared)]
}

/// A name that no other test takes.
fn number() -> u64 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed) as u64
}

/// Tries to take `names` on another thread, which has no turn.
fn elsewhere(names: &[NameToTake], limit: Duration) -> Result<(), NoTurn> {
    thread::scope(|scope| {
        let taken = scope.spawn(|| take_blocking(names, limit).map(drop));
        taken.join().unwrap()
    })
}

#[test]
fn turns_exclude_each_other_or_are_shared() {
    let one = number();
    let turn = take_blocking(&alone(one), LONG).unwrap();
    assert_eq!(elsewhere(&alone(one), SHORT), Err(NoTurn::Late));
    assert_eq!(elsewhere(&shared(one), SHORT), Err(NoTurn::Late));
    assert_eq!(elsewhere(&alone(number()), SHORT), Ok(()));
    drop(turn);
    let turn = take_blocking(&shared(one), LONG).unwrap();
    assert_eq!(elsewhere(&alone(one), SHORT), Err(NoTurn::Late));
    assert_eq!(elsewhere(&shared(one), SHORT), Ok(()));
    drop(turn);
    assert_eq!(elsewhere(&alone(one), SHORT), Ok(()));
}

/// All names are taken, or none: an encoder that waits for one name keeps no other.
#[test]
fn names_are_taken_at_once() {
    let (one, two) = (number(), number());
    let both = [alone(one)[0], alone(two)[0]];
    let turn = take_blocking(&alone(two), LONG).unwrap();
    thread::scope(|scope| {
        let (sender, late) = mpsc::channel();
        scope.spawn(move || {
            let taken = take_blocking(&both, SHORT);
            sender.send(taken.map(drop)).unwrap();
        });
        assert_eq!(late.recv().unwrap(), Err(NoTurn::Late));
    });
    assert_eq!(elsewhere(&alone(one), SHORT), Ok(()));
    drop(turn);
    assert_eq!(elsewhere(&both, SHORT), Ok(()));
}

/// A thread that has a turn is refused at once, however long it would wait.
#[test]
fn a_thread_with_a_turn_does_not_wait() {
    let (one, two) = (number(), number());
    let (taken, is_taken) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let _turn = take_blocking(&alone(two), LONG).unwrap();
            taken.send(()).unwrap();
            let _ = may_go_on.recv();
        });
        is_taken.recv().unwrap();
        let _turn = take_blocking(&alone(one), LONG).unwrap();
        assert_eq!(
            take_blocking(&alone(one), LONG).map(drop),
            Err(NoTurn::Nested)
        );
        assert_eq!(
            take_blocking(&alone(two), LONG).map(drop),
            Err(NoTurn::Nested)
        );
        assert!(
            take_blocking(&alone(number()), LONG).is_ok(),
            "it need not wait"
        );
        drop(go_on);
    });
}

/// The first come first: an encoder that wants to be alone does not starve.
#[test]
fn encoders_that_share_do_not_get_ahead() {
    let index = number();
    let first = take_blocking(&shared(index), LONG).unwrap();
    let order = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let waits = |names: [NameToTake; 1], name: &'static str| {
            let order = &order;
            let waiting = || {
                let line = Process::this().line();
                let mine = |one: &&Waiting| one.names[0].0 == Name::Index(index);
                line.waiting.iter().filter(mine).count()
            };
            let before = waiting();
            scope.spawn(move || {
                let _turn = take_blocking(&names, LONG).unwrap();
                order.lock().unwrap().push(name);
            });
            while waiting() == before {
                thread::yield_now();
            }
        };
        waits(alone(index), "alone");
        waits(shared(index), "shared");
        assert!(order.lock().unwrap().is_empty());
        drop(first);
    });
    assert_eq!(*order.lock().unwrap(), ["alone", "shared"]);
}

/// A child of this process has none of the turns that threads of this process have.
#[cfg(target_os = "linux")]
#[test]
#[allow(unsafe_code, reason = "fork")]
fn a_forked_child_has_a_line_of_its_own() {
    let one = number();
    let turn = take_blocking(&alone(one), LONG).unwrap();
    // The line is locked, as another thread may have locked it when this one forks.
    let locked = Process::this().line();
    // SAFETY: the child calls nothing that needs other threads, and ends without returning.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // The thread that forks has its turn in the child, too; another thread would not.
        let turns = TURNS.replace(0);
        let taken = take_blocking(&alone(one), SHORT).map(drop);
        TURNS.set(turns);
        drop(turn);
        // SAFETY: it ends this process.
        unsafe { libc::_exit(i32::from(taken.is_err())) }
    }
    drop(locked);
    let mut status = 0;
    // SAFETY: the child is ours, and `status` is there.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    drop(turn);
    assert_eq!(elsewhere(&alone(one), SHORT), Ok(()));
}

#[cfg(feature = "async")]
mod awaited {
    use std::task::Context;

    use futures::executor::block_on;

    use super::*;

    /// Blocking and awaited encoders have one line.
    #[test]
    fn both_kinds_wait_for_each_other() {
        let one = number();
        let turn = block_on(take_awaited(&alone(one), LONG)).unwrap();
        assert_eq!(elsewhere(&alone(one), SHORT), Err(NoTurn::Late));
        drop(turn);
        let turn = take_blocking(&alone(one), LONG).unwrap();
        // Not this thread, which has a turn.
        thread::scope(|scope| {
            let late = scope.spawn(|| block_on(take_awaited(&alone(one), SHORT)).map(drop));
            assert_eq!(late.join().unwrap(), Err(NoTurn::Late));
            let waiting = scope.spawn(|| block_on(take_awaited(&alone(one), LONG)).map(drop));
            drop(turn);
            assert_eq!(waiting.join().unwrap(), Ok(()));
        });
    }

    /// A future that is dropped gives its turn back, and its place in the line.
    #[test]
    fn dropped_futures() {
        let one = number();
        let turn = block_on(take_awaited(&alone(one), LONG)).unwrap();
        let mut context = Context::from_waker(Waker::noop());
        let names = alone(one);
        let mut waiting = Box::pin(take_awaited(&names, LONG));
        let mut behind = Box::pin(take_awaited(&names, LONG));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert!(behind.as_mut().poll(&mut context).is_pending());
        drop(waiting);
        drop(turn);
        let Poll::Ready(Ok(turn)) = behind.as_mut().poll(&mut context) else {
            panic!("the turn goes to the next in the line");
        };
        // It has the turn, and does not know it yet.
        let mut unaware = Box::pin(take_awaited(&names, LONG));
        assert!(unaware.as_mut().poll(&mut context).is_pending());
        drop(turn);
        drop(unaware);
        assert_eq!(elsewhere(&names, SHORT), Ok(()));
    }

    /// While a future that has a turn is polled, the thread does not wait for another one.
    #[test]
    fn a_polled_turn_counts() {
        let one = number();
        let turn = block_on(take_awaited(&alone(one), LONG)).unwrap();
        let nested = block_on(during(Some(&turn), async {
            take_blocking(&alone(one), LONG).map(drop)
        }));
        assert_eq!(nested, Err(NoTurn::Nested));
        let nested = during(Some(&turn), async {
            take_awaited(&alone(one), LONG).await.map(drop)
        });
        assert_eq!(block_on(nested), Err(NoTurn::Nested));
        assert_eq!(
            take_blocking(&alone(one), SHORT).map(drop),
            Err(NoTurn::Late)
        );
    }

    /// The clock ends with the last alarm, and begins again.
    #[test]
    fn the_clock_wakes_more_than_once() {
        for _ in 0..3 {
            let names = alone(number());
            let turn = block_on(take_awaited(&names, LONG)).unwrap();
            let late = block_on(take_awaited(&names, SHORT)).map(drop);
            assert_eq!(late, Err(NoTurn::Late));
            drop(turn);
        }
    }
}
