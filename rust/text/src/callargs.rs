//! Arguments that Python lets a caller give by position or by name.

use minijinja::value::{from_args, Kwargs, Rest, Value};
use minijinja::Error;

pub struct CallArgs {
    positional: Rest<Value>,
    named: Kwargs,
}

impl CallArgs {
    pub fn new(positional: Rest<Value>, named: Kwargs) -> CallArgs {
        CallArgs { positional, named }
    }

    pub fn from(args: &[Value]) -> Result<CallArgs, Error> {
        let (positional, named) = from_args(args)?;
        Ok(CallArgs { positional, named })
    }

    /// Not given, and undefined, are None.
    pub fn get(&self, position: usize, name: &str) -> Result<Option<Value>, Error> {
        let value = match self.positional.get(position) {
            Some(value) => Some(value.clone()),
            None => self.named.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|v| !v.is_undefined()))
    }

    /// Refuses names that nobody asked for. Called after every `get`.
    pub fn done(self) -> Result<(), Error> {
        self.named.assert_all_used()
    }
}
