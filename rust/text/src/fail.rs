//! The one error type of the crate: a code the C++ side maps to its own, and a text.

use std::any::Any;
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Mirrors `ErrorCode` of base/result.h as far as this crate needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    /// The request is wrong: an id out of range, a template that refuses the conversation.
    Invalid = 1,
    /// The file is damaged or contradicts itself.
    Corrupt = 2,
    /// Valid, but not something this build does.
    Unsupported = 3,
    /// A panic inside one of the libraries.
    Panic = 4,
    /// Memory or threads ran out.
    Exhausted = 5,
}

#[derive(Debug)]
pub struct Fail {
    pub code: Code,
    pub text: String,
}

impl Fail {
    pub fn invalid(text: impl Into<String>) -> Fail {
        Fail { code: Code::Invalid, text: text.into() }
    }

    pub fn corrupt(text: impl Into<String>) -> Fail {
        Fail { code: Code::Corrupt, text: text.into() }
    }

    pub fn exhausted(text: impl Into<String>) -> Fail {
        Fail { code: Code::Exhausted, text: text.into() }
    }

    pub fn unsupported(text: impl Into<String>) -> Fail {
        Fail { code: Code::Unsupported, text: text.into() }
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Fail {}

/// What the tokenizer library says, or what a function of ours that it called says.
pub fn library(e: Box<dyn std::error::Error + Send + Sync>) -> Fail {
    match e.downcast::<Fail>() {
        Ok(fail) => *fail,
        Err(e) => Fail::corrupt(e.to_string()),
    }
}

pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no text")
}

/// Runs a step of the tokenizer library, which panics on some files where it should refuse them.
pub fn guarded<T>(place: &str, f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic_text(&*panic);
        Err(Fail::corrupt(format!("{place}: contradicts itself (the library stopped: {text})")))
    })
}

pub type Result<T> = std::result::Result<T, Fail>;
