//! The `tojson` filter as transformers replaces it: `json.dumps(x, ensure_ascii=False, ...)`, which
//! unlike Jinja's own leaves `< > & '` alone.

use crate::callargs::CallArgs;
use crate::pyvalue::{as_float, float_repr};
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::fmt::Write;

/// Deeper values are refused; Python's limit is its recursion limit.
const DEPTH_MAX: usize = 200;
const INDENT_MAX: i64 = 64;

struct Writer {
    ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort: bool,
    out: String,
}

fn refuse(what: impl std::fmt::Display) -> Error {
    let text = format!("Object of type {what} is not JSON serializable");
    Error::new(ErrorKind::InvalidOperation, text)
}

impl Writer {
    fn string(&mut self, s: &str) {
        self.out.push('"');
        for c in s.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                // A mark (control.rs) must reach the output as it is.
                c if (c as u32) < 0x20
                    || (self.ascii && !(' '..='~').contains(&c) && !crate::control::is_mark(c)) =>
                {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn newline(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(depth));
        }
    }

    fn number(v: &Value) -> String {
        match as_float(v) {
            Some(f) if f.is_nan() => "NaN".into(),
            Some(f) if f.is_infinite() => if f < 0.0 { "-Infinity" } else { "Infinity" }.into(),
            Some(f) => float_repr(f),
            None => v.to_string(),
        }
    }

    fn value(&mut self, v: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(Error::new(ErrorKind::InvalidOperation, "the value is nested too deep"));
        }
        match v.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if v.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&Self::number(v)),
            ValueKind::String => self.string(v.as_str().unwrap_or_default()),
            ValueKind::Seq => {
                let items: Vec<Value> = v.try_iter()?.collect();
                self.items('[', ']', items.len(), depth, |w, i| w.value(&items[i], depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = v.try_iter()?.collect();
                if self.sort {
                    keys.sort();
                }
                self.items('{', '}', keys.len(), depth, |w, i| w.member(v, &keys[i], depth + 1))?;
            }
            kind => return Err(refuse(kind)),
        }
        Ok(())
    }

    fn items(
        &mut self,
        open: char,
        close: char,
        count: usize,
        depth: usize,
        mut write: impl FnMut(&mut Self, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for i in 0..count {
            if i > 0 {
                let separator = self.item_separator.clone();
                self.out.push_str(&separator);
            }
            self.newline(depth + 1);
            write(self, i)?;
        }
        if count > 0 {
            self.newline(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn member(&mut self, map: &Value, key: &Value, depth: usize) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::None => self.string("null"),
            ValueKind::Bool => self.string(if key.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.string(&Self::number(key)),
            kind => {
                let text = format!("keys must be str, int, float, bool or None, not {kind}");
                return Err(Error::new(ErrorKind::InvalidOperation, text));
            }
        }
        let separator = self.key_separator.clone();
        self.out.push_str(&separator);
        self.value(&map.get_item(key)?, depth)
    }
}

/// `json.dumps(v, ensure_ascii=False)`.
pub fn dumps(v: &Value) -> Result<String, Error> {
    let mut w = Writer {
        ascii: false,
        indent: None,
        item_separator: ", ".into(),
        key_separator: ": ".into(),
        sort: false,
        out: String::new(),
    };
    w.value(v, 0)?;
    Ok(w.out)
}

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub fn tojson(v: &Value, positional: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let args = CallArgs::new(positional, named);
    let argument =
        |i: usize, name: &str| Ok::<_, Error>(args.get(i, name)?.filter(|v| !v.is_none()));
    let ascii = argument(0, "ensure_ascii")?.is_some_and(|v| v.is_true());
    let indent = match argument(1, "indent")? {
        Some(v) if v.kind() == ValueKind::String => Some(v.to_string()),
        Some(v) => Some(" ".repeat(i64::try_from(v)?.clamp(0, INDENT_MAX) as usize)),
        None => None,
    };
    let (item_separator, key_separator) = match argument(2, "separators")? {
        Some(pair) => {
            (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string())
        }
        None => (if indent.is_some() { "," } else { ", " }.into(), ": ".into()),
    };
    let sort = argument(3, "sort_keys")?.is_some_and(|v| v.is_true());
    args.done()?;
    let mut w = Writer { ascii, indent, item_separator, key_separator, sort, out: String::new() };
    w.value(v, 0)?;
    Ok(Value::from(w.out))
}
