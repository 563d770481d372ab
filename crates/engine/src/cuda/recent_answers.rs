//! A cache of the answers to recent questions.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A cache of the answers to the questions that were asked last, each with its question.
#[derive(Debug)]
pub(super) struct RecentAnswers<Q, A>(Mutex<VecDeque<(Q, A)>>);

impl<Q, A> Default for RecentAnswers<Q, A> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<Q, A: Clone> RecentAnswers<Q, A> {
    /// The most answers that the cache keeps.
    const MOST: usize = 32;

    /// Returns the cached answer to the question for which `is_it` is true. If there is none, calls `find`,
    /// and caches the question and the answer that `find` returns. No lock is held during `find`.
    pub(super) fn get_or<E>(
        &self,
        is_it: impl Fn(&Q) -> bool,
        find: impl FnOnce() -> Result<(Q, A), E>,
    ) -> Result<A, E> {
        let mut kept = self.lock();
        if let Some(position) = kept.iter().rposition(|(question, _)| is_it(question))
            && let Some(found) = kept.remove(position)
        {
            let answer = found.1.clone();
            kept.push_back(found);
            return Ok(answer);
        }
        drop(kept);
        let (question, answer) = find()?;
        let mut kept = self.lock();
        if kept.len() == Self::MOST {
            kept.pop_front();
        }
        kept.push_back((question, answer.clone()));
        Ok(answer)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Q, A)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_last_is_kept() {
        let kept = RecentAnswers::default();
        let most = RecentAnswers::<usize, usize>::MOST;
        let ask = |question: usize| {
            let mut asked = false;
            let answer: Result<_, ()> = kept.get_or(
                |other| *other == question,
                || {
                    asked = true;
                    Ok((question, 2 * question))
                },
            );
            assert_eq!(answer, Ok(2 * question));
            asked
        };
        assert!((0..most).all(ask));
        assert!(!ask(0));
        assert!(ask(most));
        assert!(!ask(0), "it was asked lately");
        assert!(ask(1), "it was asked the longest ago");
    }

    #[test]
    fn errors_are_not_kept() {
        let kept = RecentAnswers::default();
        let refused: Result<u8, _> = kept.get_or(|()| true, || Err("not now"));
        assert_eq!(refused, Err("not now"));
        assert_eq!(kept.get_or(|()| true, || Ok::<_, &str>(((), 1))), Ok(1));
    }
}
