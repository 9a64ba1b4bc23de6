//! The one error type of the crate: a code the C++ side maps to its own, and a text.

use std::fmt;

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

    pub fn unsupported(text: impl Into<String>) -> Fail {
        Fail { code: Code::Unsupported, text: text.into() }
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

pub type Result<T> = std::result::Result<T, Fail>;
