//! What one encoding or decoding may use. A tokenizer.json is a program: normalizers that replace
//! one letter by two, sixty of them in a row, or a regex that backtracks for ever. Legitimate ones
//! stay far below every limit here; the others are refused with the name of the step.

use crate::fail::{Fail, Result};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Bytes that the steps may make of each byte of the text, and of a text however short. The largest
/// growth of a published tokenizer is 18 characters for one (NFKC of U+FDFA).
pub const GROWTH_MAX: usize = 64;
pub const GROWTH_FLOOR_BYTES: usize = 1 << 20;

/// Processor time for the regexes of one text. Published ones take some 0.3 s for a MiB.
const REGEX_SECONDS: u64 = 10;
const REGEX_SECONDS_PER_MIB: u64 = 20;

pub struct Budget {
    input_bytes: usize,
    bytes_max: usize,
    done_bytes: AtomicUsize,
    begin: Instant,
    cpu_begin: Duration,
    time_max: Duration,
}

impl Budget {
    pub fn new(input_bytes: usize) -> Budget {
        let seconds = REGEX_SECONDS + REGEX_SECONDS_PER_MIB * (input_bytes as u64 >> 20);
        Budget::with_time(input_bytes, Duration::from_secs(seconds))
    }

    pub fn with_time(input_bytes: usize, time_max: Duration) -> Budget {
        Budget {
            input_bytes,
            bytes_max: input_bytes.saturating_mul(GROWTH_MAX).saturating_add(GROWTH_FLOOR_BYTES),
            done_bytes: AtomicUsize::new(0),
            begin: Instant::now(),
            cpu_begin: thread_time(),
            time_max,
        }
    }

    /// Refuses a step that could make more than `bytes` beside what is finished.
    pub fn expect(&self, place: &str, bytes: usize) -> Result<()> {
        let total = self.done_bytes.load(Relaxed).saturating_add(bytes);
        if total <= self.bytes_max {
            return Ok(());
        }
        Err(Fail::corrupt(format!(
            "{place}: grows {} bytes of text to {total}; expected at most {} ({GROWTH_MAX} for \
             each and {GROWTH_FLOOR_BYTES})",
            self.input_bytes, self.bytes_max
        )))
    }

    /// A piece of the text is finished with so many bytes.
    pub fn finish(&self, bytes: usize) {
        self.done_bytes.fetch_add(bytes, Relaxed);
    }

    /// The wall clock is cheap, the processor's counts: a stopped process is no slow regex.
    pub fn check_time(&self, place: &str) -> Result<()> {
        if self.begin.elapsed() < self.time_max || self.cpu_seconds() < self.time_max {
            return Ok(());
        }
        Err(Fail::unsupported(format!(
            "{place}: the regex does not end: more than {} s of processor time for {} bytes",
            self.time_max.as_secs(),
            self.input_bytes
        )))
    }

    fn cpu_seconds(&self) -> Duration {
        thread_time().saturating_sub(self.cpu_begin)
    }
}

fn thread_time() -> Duration {
    // SAFETY: timespec is plain data that clock_gettime fills.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_the_processors_and_bytes_add_up() {
        let budget = Budget::with_time(1, Duration::ZERO);
        let fail = budget.check_time("step").unwrap_err();
        assert!(fail.text.starts_with("step: the regex does not end"), "{}", fail.text);
        assert!(Budget::new(1).check_time("step").is_ok());

        let limit = GROWTH_FLOOR_BYTES + GROWTH_MAX;
        assert!(budget.expect("step", limit).is_ok());
        assert!(budget.expect("step", limit + 1).is_err());
        budget.finish(limit);
        assert!(budget.expect("step", 0).is_ok());
        assert!(budget.expect("step", 1).is_err());
    }
}
