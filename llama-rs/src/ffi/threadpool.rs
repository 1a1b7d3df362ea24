//! A pool of ggml's compute threads.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use ggml_sys as sys;

use crate::error::{Error, ErrorKind, Result};

/// Threads that stay alive between decodes; without a pool ggml starts and joins them for every graph.
pub(crate) struct ThreadPool {
    pool: NonNull<sys::ggml_threadpool>,
}

// SAFETY: a pool is a heap object driven by mutexes and atomics (ggml-cpu.c:3333); which thread calls doesn't matter,
// and only the context that owns it uses it.
unsafe impl Send for ThreadPool {}

impl ThreadPool {
    /// Starts `n_threads - 1` workers; the thread that decodes is the last of the `n_threads`.
    pub(crate) fn new(n_threads: u32) -> Result<Self> {
        assert_startable(n_threads.saturating_sub(1))?;
        // SAFETY: a pure function of its argument (ggml.c:8261).
        let mut params = unsafe { sys::ggml_threadpool_params_default(n_threads as i32) };
        // They wait for the first graph, which wakes them up (ggml-cpu.c:3315), and don't poll for it meanwhile.
        params.paused = true;
        // SAFETY: `params` is initialized; thread creation, the one thing that would abort (ggml-cpu.c:3389), was
        // tried just now.
        let pool = unsafe { sys::ggml_threadpool_new(&mut params) };
        let pool = NonNull::new(pool).ok_or_else(|| {
            Error::new(ErrorKind::OutOfMemory { needed: None, available: None }, "no thread pool")
        })?;
        Ok(Self { pool })
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::ggml_threadpool {
        self.pool.as_ptr()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        // SAFETY: made by ggml_threadpool_new and freed once; its context was freed before (field order in Context).
        unsafe { sys::ggml_threadpool_free(self.pool.as_ptr()) };
    }
}

/// Tries to start `workers` threads at once, because ggml aborts the process where it cannot.
fn assert_startable(workers: u32) -> Result<()> {
    let mut started = Vec::new();
    let mut outcome = Ok(());
    // The threads wait until all have started, so that the number that lives at once is what is tried.
    let (release, waiting) = mpsc::channel::<()>();
    let waiting = Arc::new(Mutex::new(waiting));
    for number in 0..workers {
        let waiting = Arc::clone(&waiting);
        // 8 MiB is the usual stack of a pthread, which is what ggml starts.
        let builder = thread::Builder::new().stack_size(8 << 20);
        match builder.spawn(move || drop(waiting.lock().map(|waiting| waiting.recv()))) {
            Ok(handle) => started.push(handle),
            Err(error) => {
                let message = format!(
                    "the system allows {number} of {workers} more threads ({error}); use fewer threads"
                );
                let kind = ErrorKind::OutOfMemory { needed: None, available: None };
                outcome = Err(Error::new(kind, message));
                break;
            }
        }
    }
    drop(release);
    started.into_iter().for_each(|handle| drop(handle.join()));
    outcome
}
