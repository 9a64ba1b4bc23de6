//! JSON values as Python would have them: dictionaries whose methods win over keys of the same
//! name, and str() and repr() of every value.

use minijinja::value::{Enumerator, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::Arc;

/// Dictionaries up to this size are searched in order; larger ones have an index.
const LINEAR_MAX: usize = 8;

/// A JSON object. A tool schema may well have a key "items": `schema.items()` is still the method.
#[derive(Debug)]
pub struct PyDict {
    pairs: Vec<(Arc<str>, Value)>,
    index: HashMap<Arc<str>, usize>,
}

impl PyDict {
    pub fn new(pairs: Vec<(Arc<str>, Value)>) -> PyDict {
        let mut index = HashMap::new();
        if pairs.len() > LINEAR_MAX {
            index.extend(pairs.iter().enumerate().map(|(i, (key, _))| (key.clone(), i)));
        }
        PyDict { pairs, index }
    }

    fn find(&self, key: &str) -> Option<&Value> {
        let at = if self.pairs.len() > LINEAR_MAX {
            self.index.get(key).copied()
        } else {
            self.pairs.iter().position(|(k, _)| **k == *key)
        };
        at.map(|i| &self.pairs[i].1)
    }
}

impl Object for PyDict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.find(key.as_str()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.pairs.iter().map(|(k, _)| Value::from(k.clone())).collect())
    }

    fn call_method(
        self: &Arc<Self>,
        state: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        if crate::pymethods::DICT.contains(&method) {
            return crate::pymethods::call(
                state,
                &Value::from_dyn_object(self.clone()),
                method,
                args,
            );
        }
        match self.find(method) {
            Some(function) => function.call(state, args),
            None => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&str_of(&Value::from_dyn_object(self.clone())))
    }
}

pub fn from_json(json: serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => Value::from(i),
            (_, Some(u)) => Value::from(u),
            _ => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(s) => Value::from(s),
        Json::Array(items) => Value::from(items.into_iter().map(from_json).collect::<Vec<_>>()),
        Json::Object(members) => {
            let pair = |(key, value): (String, Json)| (Arc::from(key), from_json(value));
            Value::from_object(PyDict::new(members.into_iter().map(pair).collect()))
        }
    }
}

pub fn as_float(v: &Value) -> Option<f64> {
    let is_float = v.kind() == ValueKind::Number && !v.is_integer();
    is_float.then(|| f64::try_from(v.clone()).unwrap_or(f64::NAN))
}

/// Python's repr(float): the shortest digits that read back, in Python's layout.
pub fn float_repr(f: f64) -> String {
    if f.is_nan() {
        return "nan".into();
    }
    if f.is_infinite() {
        return if f < 0.0 { "-inf".into() } else { "inf".into() };
    }
    let scientific = format!("{f:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) || f == 0.0 {
        let text = format!("{f}");
        return if text.contains('.') { text } else { text + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

fn string_repr(s: &str, out: &mut String) {
    let quote = if s.contains('\'') && !s.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in s.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if (c as u32) < 0x20 || (0x7f..=0xa0).contains(&(c as u32)) || c == '\u{ad}' => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            // The other characters that Python does not print.
            '\u{2028}' | '\u{2029}' | '\u{200b}'..='\u{200f}' | '\u{feff}' | '\u{3000}' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Python's repr(value). Deeper values than Python's recursion limit allows end in "...".
pub fn repr(v: &Value, out: &mut String) {
    repr_at(v, 0, out);
}

const DEPTH_MAX: usize = 1000;

fn repr_at(v: &Value, depth: usize, out: &mut String) {
    if depth > DEPTH_MAX {
        return out.push_str("...");
    }
    match v.kind() {
        ValueKind::String => string_repr(v.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if v.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            for (i, item) in v.try_iter().into_iter().flatten().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                repr_at(&item, depth + 1, out);
            }
            if v.is_tuple() && v.len() == Some(1) {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in v.try_iter().into_iter().flatten().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                repr_at(&key, depth + 1, out);
                out.push_str(": ");
                repr_at(&v.get_item(&key).unwrap_or_default(), depth + 1, out);
            }
            out.push('}');
        }
        _ => out.push_str(&str_of(v)),
    }
}

/// Python's str(value), which is what `{{ value }}` prints.
pub fn str_of(v: &Value) -> String {
    if let Some(f) = as_float(v) {
        return float_repr(f);
    }
    match v.kind() {
        ValueKind::Seq | ValueKind::Map => {
            let mut out = String::new();
            repr(v, &mut out);
            out
        }
        _ => v.to_string(), // strings, True, False, None, integers, undefined
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The expected texts are Python 3.11's.
    #[test]
    fn floats_print_as_in_python() {
        for (f, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (100.0, "100.0"),
            (1e-7, "1e-07"),
            (0.0001, "0.0001"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (9999999999999998.0, "9999999999999998.0"),
            (0.1, "0.1"),
            (5e-324, "5e-324"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float_repr(f), text);
        }
    }

    #[test]
    fn containers_print_as_in_python() {
        let v = from_json(serde_json::json!({"a": [1, 2.0, true, null, "it's"], "b": "\"'\n"}));
        assert_eq!(str_of(&v), r#"{'a': [1, 2.0, True, None, "it's"], 'b': '"\'\n'}"#);
    }
}
