//! Runs a rendering on a stack that its values cannot overflow.
//!
//! A template can nest a list in itself as often as its fuel allows, and such values are dropped,
//! compared and printed by recursion. The stack is sized by the fuel; it is address space, and
//! costs memory only where it is used.

use std::panic::resume_unwind;
use std::thread::{scope, Builder};

/// Twice what `nested_values_do_not_overflow_the_stack` was seen to get by with, unoptimised.
const STACK_BYTES_PER_FUEL: u64 = 512;
const STACK_BYTES_MIN: u64 = 16 << 20;

/// Err: the system gives no thread.
pub fn run<T: Send>(fuel: u64, f: impl FnOnce() -> T + Send) -> std::io::Result<T> {
    let stack_bytes = STACK_BYTES_MIN + fuel * STACK_BYTES_PER_FUEL;
    let stack_bytes = usize::try_from(stack_bytes).unwrap_or(usize::MAX);
    scope(|scope| {
        let thread = Builder::new().stack_size(stack_bytes).spawn_scoped(scope, f)?;
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}
