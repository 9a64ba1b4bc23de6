//! `strftime_now`: the date for a template, from a clock that the caller sets.

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

thread_local! {
    static NOW: Cell<Option<i64>> = const { Cell::new(None) };
}

/// Sets the time, in seconds since 1970 UTC, for renderings on this thread until it is dropped.
pub struct Now(());

impl Now {
    pub fn set(seconds: Option<i64>) -> Now {
        NOW.with(|now| now.set(seconds));
        Now(())
    }
}

impl Drop for Now {
    fn drop(&mut self) {
        NOW.with(|now| now.set(None));
    }
}

/// `datetime.now().strftime(format)` in local time, as transformers defines it.
pub fn strftime_now(format: &str) -> String {
    let system = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let seconds = NOW.with(Cell::get).unwrap_or_else(system);
    // An empty result is then told from a buffer that is too small.
    let Ok(c_format) = std::ffi::CString::new(format!("{format}.")) else { return String::new() };
    let mut buffer = vec![0u8; 256 + format.len() * 32];
    // SAFETY: tm is plain data that localtime_r fills; strftime writes at most the buffer's length.
    let written = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        libc::localtime_r(&seconds, &mut tm);
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), c_format.as_ptr(), &tm)
    };
    String::from_utf8_lossy(&buffer[..written.saturating_sub(1)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_the_one_that_was_set() {
        // 2025-06-15 15:06:40 UTC; any zone has the same month.
        let _now = Now::set(Some(1_750_000_000));
        assert_eq!(strftime_now("%Y-%m"), "2025-06");
        assert_eq!(strftime_now(""), "");
    }
}
