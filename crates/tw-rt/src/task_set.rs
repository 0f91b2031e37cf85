//! Set of tasks with an owner: they end with the set, and the owner gets the result of each.

use std::collections::HashMap;
use std::future::Future;
use std::task::{Context, Poll, ready};

use tokio::task::{Id, JoinSet};

use crate::watch::{Subject, Watched};

/// Tasks of this loop, each known by a key. Dropping the set ends them: none runs again.
#[derive(Debug)]
pub struct TaskSet<K, T> {
    tasks: JoinSet<T>,
    keys: HashMap<Id, K>,
}

/// A task has panicked. That was told when it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Panicked;

impl<K, T: 'static> Default for TaskSet<K, T> {
    fn default() -> Self {
        Self { tasks: JoinSet::new(), keys: HashMap::new() }
    }
}

impl<K, T: 'static> TaskSet<K, T> {
    /// Starts `future` as a task of the loop this thread runs. Panics when it runs none.
    pub fn spawn(&mut self, key: K, subject: Subject, future: impl Future<Output = T> + 'static) {
        let task = self.tasks.spawn_local(Watched::new(subject, future));
        self.keys.insert(task.id(), key);
    }

    /// Gives back the memory that it took to know its tasks, if there is none any more.
    pub fn shrink(&mut self) {
        if self.is_empty() && self.keys.capacity() > 0 {
            *self = Self::default();
        }
    }

    /// Number of tasks that run, or have ended and were not collected.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The next task that has ended; never ready while there is none in the set.
    pub fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<(K, Result<T, Panicked>)> {
        loop {
            let Some(ended) = ready!(self.tasks.poll_join_next_with_id(cx)) else { return Poll::Pending };
            let (id, outcome) = match ended {
                Ok((id, value)) => (id, Ok(value)),
                Err(error) => (error.id(), Err(Panicked)),
            };
            if let Some(key) = self.keys.remove(&id) {
                return Poll::Ready((key, outcome));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::rc::Rc;

    use super::*;
    use crate::testing::on_loop;
    use crate::yield_now;

    const TEST: Subject = Subject { kind: "test", id: 0 };

    #[test]
    fn set_reports_how_each_task_ended() {
        on_loop(|| async {
            let mut set = TaskSet::default();
            set.spawn('a', TEST, async { 1 });
            assert_eq!(poll_fn(|cx| set.poll_ended(cx)).await, ('a', Ok(1)));
            set.spawn('b', TEST, async { panic!("expected") });
            assert_eq!(poll_fn(|cx| set.poll_ended(cx)).await, ('b', Err(Panicked)));
            assert!(set.is_empty() && set.keys.is_empty());
            set.shrink();
            assert_eq!(set.keys.capacity(), 0);
            set.spawn('c', TEST, async { 3 });
            set.shrink();
            assert_eq!(poll_fn(|cx| set.poll_ended(cx)).await, ('c', Ok(3)), "it is not forgotten");
        });
    }

    #[test]
    fn tasks_end_with_their_set() {
        on_loop(|| async {
            let turns = Rc::new(Cell::new(0));
            let mut set = TaskSet::default();
            let counted = turns.clone();
            set.spawn((), TEST, async move {
                loop {
                    counted.set(counted.get() + 1);
                    yield_now().await;
                }
            });
            yield_now().await;
            drop(set);
            let seen_count = turns.get();
            assert!(seen_count > 0);
            for _ in 0..3 {
                yield_now().await;
            }
            assert_eq!((turns.get(), Rc::strong_count(&turns)), (seen_count, 1));
        });
    }
}
