//! Threads for a piece of work, where the system may not allow as many as there could be.

use std::iter;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Builder};

/// Calls `work` with each item, each in a thread of its own, and returns the results in the order of the items.
///
/// The first item is for the calling thread, which then also does what there are no threads for: a limit of threads, as
/// containers have it, costs time and is no error.
///
/// # Examples
/// ```
/// let squares = smol_engine::threads::at_once(1..=4, |number| number * number);
/// assert_eq!(squares, [1, 4, 9, 16]);
/// ```
///
/// # Panics
/// If `work` does.
pub fn at_once<T: Send, R: Send>(
    items: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    at_once_by(Builder::new, items, work)
}

fn at_once_by<T: Send, R: Send>(
    builder: impl Fn() -> Builder,
    items: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    // A thread that is not started must not keep its item.
    let items: Vec<_> = items.into_iter().map(|item| Mutex::new(Some(item))).collect();
    let take = |item: &Mutex<Option<T>>| item.lock().unwrap_or_else(PoisonError::into_inner).take();
    let run = |item| take(item).map(&work);
    let run = &run;
    let results = thread::scope(|scope| {
        let (first, others) = items.split_first()?;
        let start = |item| builder().spawn_scoped(scope, move || run(item));
        let threads: Vec<_> = others.iter().map(start).collect();
        let first = run(first);
        let others = threads.into_iter().zip(others).map(|(thread, item)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => run(item),
        });
        Some(iter::once(first).chain(others).flatten().collect())
    });
    results.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn each_item_has_a_thread() {
        // Passed by nobody before all have come.
        let barrier = Barrier::new(3);
        let work = |number: u32| {
            barrier.wait();
            (number, thread::current().id())
        };
        let results = at_once([5, 6, 7], work);
        assert_eq!(results.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [5, 6, 7]);
        assert_eq!(results[0].1, thread::current().id());
        assert_ne!(results[1].1, results[2].1);
        assert_eq!(at_once(iter::empty::<u32>(), work), []);
    }

    /// Stacks of that size are larger than any address space.
    #[test]
    #[cfg(target_pointer_width = "64")]
    #[cfg_attr(miri, ignore = "has no limit")]
    fn without_threads_the_calling_one_does_it_all() {
        let builder = || Builder::new().stack_size(usize::MAX >> 3);
        assert!(builder().spawn(|| ()).is_err());
        let here = thread::current().id();
        let work = |text: String| (text, thread::current().id());
        let results = at_once_by(builder, ["a", "b", "c"].map(str::to_owned), work);
        assert_eq!(results, ["a", "b", "c"].map(|text| (text.to_owned(), here)));
    }
}
