//! Runs a piece of work on a stack that it cannot overflow.
//!
//! A template can nest a list in itself as often as its fuel allows, and such values are dropped,
//! compared and printed by recursion; the stack is sized by the fuel. And a template's text nests
//! expressions as often as it has bytes ("- - - 1", "x.a.a.a"), which the compiler walks by
//! recursion. A stack is address space, and costs memory only where it is used.

use std::panic::resume_unwind;
use std::thread::{scope, Builder};

/// Twice what `nested_values_do_not_overflow_the_stack` was seen to get by with, unoptimised.
const BYTES_PER_FUEL: u64 = 512;
/// `nested_expressions_do_not_overflow_the_stack` nests one level with each byte.
const BYTES_PER_SOURCE_BYTE: u64 = 4096;
const BYTES_MIN: u64 = 16 << 20;

/// Bytes of stack for a rendering with this much fuel.
pub fn stack_for_fuel(fuel: u64) -> u64 {
    BYTES_MIN + fuel * BYTES_PER_FUEL
}

/// Bytes of stack for compiling a text of this many bytes.
pub fn stack_for_source(bytes: usize) -> u64 {
    BYTES_MIN + bytes as u64 * BYTES_PER_SOURCE_BYTE
}

/// Err: the system gives no thread.
pub fn run<T: Send>(stack_bytes: u64, f: impl FnOnce() -> T + Send) -> std::io::Result<T> {
    let stack_bytes = usize::try_from(stack_bytes).unwrap_or(usize::MAX);
    scope(|scope| {
        let thread = Builder::new().stack_size(stack_bytes).spawn_scoped(scope, f)?;
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}
