"""The C text around kernels: thread pool, launching, timing, and the entry point of a program.

The pool: workers are made on first use, spin 50 µs for the next step, then sleep. A step is a
number of tasks, of one kernel or of several; whoever takes part, the caller too, claims chunks from
one atomic word that holds the step's epoch above and the next task below. A late worker's claim
fails when the epoch has moved on, so nobody waits for one that was not scheduled. One pool serves
all libraries of a process (`lambent_pool`), a forked child makes its own, and a second thread that
calls meanwhile runs its tasks itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from lambent.graph.dim import Atom, Size, terms_of

RUNTIME = r"""
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>
typedef void (*lp_task)(void *, int64_t);
typedef void (*lp_parallel_fn)(int64_t, int, lp_task, void *);
static pthread_mutex_t lp_busy, lp_lock;
static pthread_cond_t lp_wake;
static pthread_mutex_t lp_init = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int lp_pid;
static int lp_workers;
static _Atomic(lp_task) lp_fn;
static _Atomic(void *) lp_arg;
static _Atomic int64_t lp_count, lp_chunk;
static _Atomic int lp_limit;
static _Alignas(128) _Atomic uint64_t lp_next; /* epoch << 32 | next task */
static _Alignas(128) _Atomic int64_t lp_done;
static _Alignas(128) _Atomic int lp_sleeping;
#define LP_CLOSED 0xffffffffu
static inline void lp_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}
static int64_t lp_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static void lp_work(uint64_t epoch) {
  for (;;) {
    uint64_t at = atomic_load_explicit(&lp_next, memory_order_acquire), i = at & LP_CLOSED;
    if (at >> 32 != epoch) return;
    lp_task fn = atomic_load_explicit(&lp_fn, memory_order_relaxed);
    void *arg = atomic_load_explicit(&lp_arg, memory_order_relaxed);
    int64_t count = atomic_load_explicit(&lp_count, memory_order_relaxed);
    int64_t n = atomic_load_explicit(&lp_chunk, memory_order_relaxed);
    if ((int64_t)i >= count) return;
    if (n > count - (int64_t)i) n = count - (int64_t)i;
    /* a field of a later step was read only if the word has changed: then the claim fails */
    atomic_thread_fence(memory_order_acquire);
    if (!atomic_compare_exchange_strong(&lp_next, &at, at + (uint64_t)n)) continue;
    for (int64_t j = 0; j < n; j++) fn(arg, (int64_t)i + j);
    atomic_fetch_add_explicit(&lp_done, n, memory_order_release);
  }
}
static void *lp_worker(void *number) {
  uint64_t seen = 0;
  int64_t since = 0;
  for (;;) {
    uint64_t epoch = atomic_load(&lp_next) >> 32;
    if (epoch != seen) {
      seen = epoch, since = 0;
      if ((intptr_t)number < atomic_load(&lp_limit)) lp_work(epoch);
      continue;
    }
    int64_t now = lp_now();
    if (!since) since = now;
    if (now - since < 50000) {
      for (int i = 0; i < 16; i++) lp_pause();
      continue;
    }
    pthread_mutex_lock(&lp_lock);
    atomic_fetch_add(&lp_sleeping, 1);
    while (atomic_load(&lp_next) >> 32 == seen) pthread_cond_wait(&lp_wake, &lp_lock);
    atomic_fetch_sub(&lp_sleeping, 1);
    pthread_mutex_unlock(&lp_lock);
  }
  return NULL;
}
static void lp_start(void) { /* also in a forked child, which has none of its parent's workers */
  pthread_mutex_lock(&lp_init);
  if (atomic_load(&lp_pid) != getpid()) {
    pthread_mutex_init(&lp_busy, NULL);
    pthread_mutex_init(&lp_lock, NULL);
    pthread_cond_init(&lp_wake, NULL);
    lp_workers = 0;
    atomic_store(&lp_sleeping, 0);
    atomic_store(&lp_next, LP_CLOSED);
    atomic_store(&lp_pid, getpid());
  }
  pthread_mutex_unlock(&lp_init);
}
static void lp_grow(int wanted) { // workers take no signals but for faults of their own
  sigset_t all, old;
  pthread_attr_t attr;
  pthread_t thread;
  sigfillset(&all), sigdelset(&all, SIGSEGV), sigdelset(&all, SIGBUS), sigdelset(&all, SIGFPE);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, 16 << 20);
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  while (lp_workers < wanted) {
    if (pthread_create(&thread, &attr, lp_worker, (void *)(intptr_t)lp_workers)) break;
    lp_workers++;
  }
  pthread_attr_destroy(&attr);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
}
static void lp_step(int64_t count, int threads, lp_task fn, void *arg) {
  uint64_t epoch = (atomic_load(&lp_next) >> 32) + 1;
  atomic_store(&lp_next, epoch << 32 | LP_CLOSED);
  atomic_thread_fence(memory_order_seq_cst);
  atomic_store_explicit(&lp_fn, fn, memory_order_relaxed);
  atomic_store_explicit(&lp_arg, arg, memory_order_relaxed);
  atomic_store_explicit(&lp_count, count, memory_order_relaxed);
  int64_t chunk = count / (threads * 16);
  atomic_store_explicit(&lp_chunk, chunk < 1 ? 1 : chunk, memory_order_relaxed);
  atomic_store_explicit(&lp_limit, threads - 1, memory_order_relaxed);
  atomic_store_explicit(&lp_done, 0, memory_order_relaxed);
  epoch = (epoch + 1) & LP_CLOSED;
  atomic_store(&lp_next, epoch << 32);
  if (atomic_load(&lp_sleeping) > 0) {
    pthread_mutex_lock(&lp_lock);
    pthread_cond_broadcast(&lp_wake);
    pthread_mutex_unlock(&lp_lock);
  }
  lp_work(epoch);
  for (int spins = 0; atomic_load_explicit(&lp_done, memory_order_acquire) < count; spins++) {
    if (spins < 1000) lp_pause();
    else sched_yield();
  }
}
static void lp_own(int64_t count, int threads, lp_task fn, void *arg) {
  if (atomic_load(&lp_pid) != getpid()) lp_start();
  if (pthread_mutex_trylock(&lp_busy)) {
    for (int64_t i = 0; i < count; i++) fn(arg, i);
    return;
  }
  if (lp_workers < threads - 1) lp_grow(threads - 1);
  if (lp_workers < threads - 1) threads = lp_workers + 1;
  lp_step(count, threads, fn, arg);
  pthread_mutex_unlock(&lp_busy);
}
static lp_parallel_fn lp_parallel = lp_own;
lp_parallel_fn lambent_pool(lp_parallel_fn other) {
  if (other) lp_parallel = other;
  return lp_parallel;
}
typedef void (*lp_run)(int64_t, void *const *, const int64_t *);
typedef struct {
  int64_t count; lp_run run; double work; void *const *buf; const int64_t *size;
} lp_call;
static void lp_one(void *calls, int64_t i) {
  lp_call *c = calls;
  for (; i >= c->count; c++) i -= c->count;
  c->run(i, c->buf, c->size);
}
static void lp_launch(int calls, lp_call *call, int threads) {
  int64_t count = 0; double work = 0;
  for (int k = 0; k < calls; k++) count += call[k].count, work += call[k].work;
  if (count < 2 || threads < 2 || work < 16384 || count >= LP_CLOSED) {
    for (int k = 0; k < calls; k++)
      for (int64_t i = 0; i < call[k].count; i++) call[k].run(i, call[k].buf, call[k].size);
    return;
  }
  lp_parallel(count, threads, lp_one, call);
}
static inline int64_t lp_floordiv(int64_t a, int64_t b) {
  int64_t q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0));
}
static inline int64_t lp_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t lp_max(int64_t a, int64_t b) { return a > b ? a : b; }
"""

TIMING = r"""
void lambent_time(int k, void *const *buf, int width, int copies, int first, const int64_t *size,
                  int threads, int64_t inner, int64_t *ns) {
  int64_t start = lp_now(); double work = lp_kernels[k].work(size);
  lp_call call = {lp_kernels[k].tasks(size), lp_kernels[k].run, work, buf, size};
  for (int64_t i = 0; i < inner; i++) {
    call.buf = buf + (first + i) % copies * width;
    lp_launch(1, &call, threads);
  }
  *ns = lp_now() - start;
}
"""


def size_text(size: Size, names: Sequence[str]) -> str:
    """A C expression (int64) of a size; symbol `names[i]` is `size[i]`."""

    def atom(a: Atom) -> str:
        if a.kind == "symbol":
            return f"size[{list(names).index(a.args[0])}]"
        call = {"div": "lp_floordiv", "min": "lp_min", "max": "lp_max"}[a.kind]
        return f"{call}({', '.join(size_text(e, names) for e in a.args)})"

    parts = [
        "*".join([f"{c}LL", *(atom(a) for a, power in product for _ in range(power))])
        for c, product in terms_of(size)
    ]
    return f"({' + '.join(parts) or '0LL'})"
