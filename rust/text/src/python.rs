//! The environment that transformers gives a chat template: its options, its own functions, and
//! Jinja2's filters and tests where minijinja's differ.

use crate::callargs::CallArgs;
use crate::clock::strftime_now;
use crate::operators;
use crate::pymethods;
use crate::pyvalue::{repr, str_of};
use crate::tojson::tojson;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Object, Rest, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// Marks an error that the template itself raised.
#[derive(Debug)]
pub struct Raised(pub String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(text: &Value) -> Result<Value, Error> {
    let text = str_of(text);
    Err(Error::new(ErrorKind::InvalidOperation, text.clone()).with_source(Raised(text)))
}

pub fn environment() -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    // With it errors would hold the values they met, which deep.rs must be the one to drop.
    env.set_debug(false);
    env.set_unknown_method_callback(pymethods::call);
    env.set_formatter(|out, _state, value| {
        match value.as_str() {
            Some(text) => out.write_str(text)?,
            None => out.write_str(&str_of(value))?,
        }
        Ok(())
    });
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", |format: String| strftime_now(&format));
    env.add_function("cycler", cycler);
    env.add_function("joiner", joiner);
    operators::add_to(&mut env);
    add_filters(&mut env);
    add_tests(&mut env);
    Ok(env)
}

fn add_filters(env: &mut Environment<'static>) {
    env.add_filter("tojson", tojson);
    env.add_filter("string", |v: &Value| Value::from(str_of(v)));
    env.add_filter("pprint", |v: &Value| {
        let mut out = String::new();
        repr(v, &mut out);
        Value::from(out)
    });
    // Jinja2's trim is str(s).strip(chars).
    env.add_filter("trim", |v: &Value, chars: Option<String>| {
        let text = str_of(v);
        let drop = |c: char| match &chars {
            Some(set) => set.contains(c),
            None => pymethods::is_space(c),
        };
        Value::from(text.trim_matches(drop))
    });
    env.add_filter("wordcount", |v: &Value| {
        let text = str_of(v);
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        text.split(|c| !is_word(c)).filter(|w| !w.is_empty()).count()
    });
    env.add_filter("urlencode", |v: &Value| Value::from(percent_encoded(v)));
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("join", join);
    env.add_filter("forceescape", |v: &Value| {
        let text = str_of(v).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        Value::from(text.replace('\'', "&#39;").replace('"', "&#34;"))
    });
    env.add_filter("center", |state: &mut State, v: &Value, width: Option<i64>| {
        let args = [Value::from(width.unwrap_or(80))];
        pymethods::call(state, &Value::from(str_of(v)), "center", &args)
    });
}

fn add_tests(env: &mut Environment<'static>) {
    // None and numbers are not iterable; strings, lists, dicts and undefined are.
    env.add_test("iterable", |v: &Value| {
        use ValueKind::{Bool, None, Number, Plain};
        !matches!(v.kind(), None | Number | Bool | Plain)
    });
    env.add_test("sequence", |v: &Value| {
        matches!(v.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
    env.add_test("callable", |v: &Value| v.kind() == ValueKind::Plain);
    // bool is a kind of int in Python.
    env.add_test("number", |v: &Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool));
}

/// Python's float(text): surrounding space and underscores between digits are fine.
fn parse_float(text: &str) -> Option<f64> {
    text.trim_matches(pymethods::is_space).replace('_', "").parse().ok()
}

fn number(v: &Value) -> Option<f64> {
    match v.kind() {
        ValueKind::Bool => Some(if v.is_true() { 1.0 } else { 0.0 }),
        _ => f64::try_from(v.clone()).ok(),
    }
}

/// `float(default=0.0)`: never an error for a value.
fn float(v: &Value, positional: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let args = CallArgs::new(positional, named);
    let default = args.get(0, "default")?;
    args.done()?;
    let number = match v.as_str() {
        Some(text) => parse_float(text),
        None => number(v),
    };
    Ok(number.map(Value::from).or(default).unwrap_or_else(|| Value::from(0.0)))
}

/// `int(default=0, base=10)`: never an error for a value; a text may be a float.
fn int(v: &Value, positional: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let args = CallArgs::new(positional, named);
    let default = args.get(0, "default")?;
    let base = args.get(1, "base")?.and_then(|v| v.as_usize()).unwrap_or(10);
    args.done()?;
    let base = if (2..=36).contains(&base) { base as u32 } else { 10 };
    let truncated = |f: f64| (f.is_finite() && f.abs() < 1e18).then_some(f as i64);
    let number = match v.as_str() {
        Some(text) => {
            let digits = text.trim_matches(pymethods::is_space).replace('_', "");
            let whole = i64::from_str_radix(&digits, base).ok();
            whole.or_else(|| parse_float(text).and_then(truncated))
        }
        None if v.is_integer() => return Ok(v.clone()),
        None => number(v).and_then(truncated),
    };
    Ok(number.map(Value::from).or(default).unwrap_or_else(|| Value::from(0)))
}

/// `join(d='', attribute=None)`: str() of each item, unlike str.join.
fn join(v: &Value, positional: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let args = CallArgs::new(positional, named);
    let separator = args.get(0, "d")?.map_or(String::new(), |v| str_of(&v));
    let attribute = args.get(1, "attribute")?;
    args.done()?;
    let mut out = Vec::new();
    for item in v.try_iter()? {
        let item = match &attribute {
            Some(name) => item.get_item(name)?,
            None => item,
        };
        out.push(str_of(&item));
    }
    Ok(Value::from(out.join(&separator)))
}

/// Python's quote for one string, quote_plus pairs for a mapping or a list of pairs.
fn percent_encoded(v: &Value) -> String {
    let quote = |text: &str, plus: bool| -> String {
        let keep =
            |b: u8| b.is_ascii_alphanumeric() || b"_.-~".contains(&b) || (b == b'/' && !plus);
        text.bytes()
            .map(|b| match b {
                b' ' if plus => "+".to_string(),
                b if keep(b) => char::from(b).to_string(),
                b => format!("%{b:02X}"),
            })
            .collect()
    };
    let pair = |key: &Value, value: &Value| {
        format!("{}={}", quote(&str_of(key), true), quote(&str_of(value), true))
    };
    match v.kind() {
        ValueKind::Map => {
            let keys: Vec<Value> = v.try_iter().into_iter().flatten().collect();
            let pairs = keys.iter().map(|k| pair(k, &v.get_item(k).unwrap_or_default()));
            pairs.collect::<Vec<_>>().join("&")
        }
        ValueKind::Seq => {
            let item = |v: &Value, i: usize| v.get_item_by_index(i).unwrap_or_default();
            let pairs =
                v.try_iter().into_iter().flatten().map(|p| pair(&item(&p, 0), &item(&p, 1)));
            pairs.collect::<Vec<_>>().join("&")
        }
        _ => quote(&str_of(v), false),
    }
}

#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Object for Cycler {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let current = &self.items[self.at.load(Ordering::Relaxed) % self.items.len()];
        (key.as_str() == Some("current")).then(|| current.clone())
    }

    fn call_method(
        self: &Arc<Self>,
        _state: &mut State<'_, '_>,
        method: &str,
        _args: &[Value],
    ) -> Result<Value, Error> {
        match method {
            "next" => {
                let at = self.at.fetch_add(1, Ordering::Relaxed);
                Ok(self.items[at % self.items.len()].clone())
            }
            "reset" => {
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

fn cycler(items: Rest<Value>) -> Result<Value, Error> {
    if items.is_empty() {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "at least one item has to be provided",
        ));
    }
    Ok(Value::from_object(Cycler { items: items.to_vec(), at: AtomicUsize::new(0) }))
}

/// Nothing at the first call, then the separator.
#[derive(Debug)]
struct Joiner {
    separator: String,
    used: AtomicUsize,
}

impl Object for Joiner {
    fn call(self: &Arc<Self>, _state: &mut State<'_, '_>, _args: &[Value]) -> Result<Value, Error> {
        let first = self.used.swap(1, Ordering::Relaxed) == 0;
        Ok(Value::from(if first { "" } else { self.separator.as_str() }))
    }
}

fn joiner(separator: Option<String>) -> Value {
    let separator = separator.unwrap_or_else(|| ", ".into());
    Value::from_object(Joiner { separator, used: AtomicUsize::new(0) })
}
