//! Methods of Python's str, dict and list that templates call. What contrib's pycompat has is taken
//! from there, except where it differs from Python.

use crate::callargs::CallArgs;
use crate::pyvalue::str_of;
use minijinja::value::{from_args, Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

pub const DICT: &[&str] = &["get", "items", "keys", "values", "copy"];
const LIST: &[&str] = &["count", "index", "copy"];
const STR: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];
/// Of the loop variable.
const LOOP: &[&str] = &["cycle", "changed"];
/// Of cycler().
const CYCLER: &[&str] = &["next", "reset"];

/// Is there a value on which this method can be called?
pub fn is_known(name: &str) -> bool {
    [DICT, LIST, STR, LOOP, CYCLER].iter().any(|names| names.contains(&name))
}

pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn is_line_end(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

fn refuse(text: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.to_string())
}

pub fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let own = match value.kind() {
        ValueKind::String => string(value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Seq => list(value, method, args)?,
        ValueKind::Map if method == "copy" => Some(value.clone()),
        _ => None,
    };
    match own {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn list(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "index" => {
            let (wanted,): (&Value,) = from_args(args)?;
            match value.try_iter()?.position(|item| item == *wanted) {
                Some(i) => Ok(Some(Value::from(i))),
                None => Err(refuse("the value is not in the list")),
            }
        }
        "copy" => Ok(Some(value.clone())),
        _ => Ok(None),
    }
}

/// None: leave it to pycompat.
fn string(s: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let result = match method {
        "strip" | "lstrip" | "rstrip" => strip(s, method, args)?,
        "split" | "rsplit" => split(s, method == "rsplit", args)?,
        "partition" | "rpartition" => partition(s, method == "rpartition", args)?,
        "splitlines" => split_lines(s, args)?,
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            s.strip_prefix(prefix).unwrap_or(s).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            s.strip_suffix(suffix).unwrap_or(s).into()
        }
        "find" | "rfind" | "index" | "rindex" | "count" => search(s, method, args)?,
        "ljust" | "rjust" | "center" => justify(s, method, args)?,
        "zfill" => zfill(s, args)?,
        "startswith" | "endswith" => affix(s, method == "startswith", args)?,
        "join" => join(s, args)?,
        "title" => title(s).into(),
        "swapcase" => swap_case(s).into(),
        "casefold" => s.to_lowercase().replace('\u{df}', "ss").into(),
        "expandtabs" => expand_tabs(s, args)?,
        "isspace" => (!s.is_empty() && s.chars().all(is_space)).into(),
        "isdecimal" => (!s.is_empty() && s.chars().all(|c| c.is_ascii_digit())).into(),
        "istitle" => (s.chars().any(char::is_alphabetic) && title(s) == s).into(),
        _ => return Ok(None),
    };
    Ok(Some(result))
}

fn strip(s: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (chars,): (Option<&str>,) = from_args(args)?;
    let drop = |c: char| chars.map_or_else(|| is_space(c), |set| set.contains(c));
    let s = if method == "rstrip" { s } else { s.trim_start_matches(drop) };
    Ok(Value::from(if method == "lstrip" { s } else { s.trim_end_matches(drop) }))
}

/// str.split and str.rsplit, with `sep` and `maxsplit` by position or by name.
fn split(s: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let args = CallArgs::from(args)?;
    let separator = args.get(0, "sep")?.filter(|v| !v.is_none());
    let limit = args.get(1, "maxsplit")?.and_then(|v| v.as_i64()).unwrap_or(-1);
    args.done()?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let Some(separator) = separator else { return Ok(split_space(s, from_right, limit)) };
    let separator = separator.as_str().ok_or_else(|| refuse("the separator must be a string"))?;
    if separator.is_empty() {
        return Err(refuse("empty separator"));
    }
    let parts = limit.saturating_add(1);
    let mut out: Vec<&str> = if from_right {
        s.rsplitn(parts, separator).collect()
    } else {
        s.splitn(parts, separator).collect()
    };
    if from_right {
        out.reverse();
    }
    Ok(strings(out))
}

fn strings(items: Vec<&str>) -> Value {
    items.into_iter().map(Value::from).collect()
}

fn trim_side(s: &str, at_end: bool) -> &str {
    if at_end {
        s.trim_end_matches(is_space)
    } else {
        s.trim_start_matches(is_space)
    }
}

/// Splits at runs of white space; after `limit` splits the rest keeps its inner and far space.
fn split_space(s: &str, from_right: bool, limit: usize) -> Value {
    let mut out = Vec::new();
    let mut rest = trim_side(s, from_right);
    while !rest.is_empty() {
        let cut = if from_right {
            rest.char_indices().rev().find(|(_, c)| is_space(*c)).map(|(i, c)| i + c.len_utf8())
        } else {
            rest.find(is_space)
        };
        let (Some(cut), true) = (cut, out.len() < limit) else {
            out.push(rest);
            break;
        };
        let (left, right) = rest.split_at(cut);
        out.push(if from_right { right } else { left });
        rest = trim_side(if from_right { left } else { right }, from_right);
    }
    if from_right {
        out.reverse();
    }
    strings(out)
}

fn partition(s: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(args)?;
    if separator.is_empty() {
        return Err(refuse("empty separator"));
    }
    let halves = if from_right { s.rsplit_once(separator) } else { s.split_once(separator) };
    let parts = match (halves, from_right) {
        (Some((left, right)), _) => [left, separator, right],
        (None, false) => [s, "", ""],
        (None, true) => ["", "", s],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

fn split_lines(s: &str, args: &[Value]) -> Result<Value, Error> {
    let (keep,): (Option<bool>,) = from_args(args)?;
    let mut out = Vec::new();
    let mut rest = s;
    while let Some(at) = rest.find(is_line_end) {
        let width = if rest[at..].starts_with("\r\n") {
            2
        } else {
            rest[at..].chars().next().map_or(0, char::len_utf8)
        };
        let end = at + width;
        out.push(&rest[..if keep.unwrap_or(false) { end } else { at }]);
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        out.push(rest);
    }
    Ok(strings(out))
}

/// Turns Python's start and end, in characters, into the part of `s` they name, and its offset.
fn part<'a>(s: &'a str, start: Option<i64>, end: Option<i64>) -> Option<(&'a str, usize)> {
    let count = s.chars().count() as i64;
    let clamp = |i: i64| if i < 0 { (i + count).max(0) } else { i };
    let (from, to) = (clamp(start.unwrap_or(0)), clamp(end.unwrap_or(count)).min(count));
    if from > to {
        return None;
    }
    let byte = |n: i64| s.char_indices().nth(n as usize).map_or(s.len(), |(i, _)| i);
    Some((&s[byte(from)..byte(to)], from as usize))
}

fn search(s: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (wanted, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    let part = part(s, start, end);
    if method == "count" {
        let Some((text, _)) = part else { return Ok(Value::from(0)) };
        let empty = wanted.is_empty();
        let count = if empty { text.chars().count() + 1 } else { text.matches(wanted).count() };
        return Ok(Value::from(count));
    }
    let found = part.and_then(|(text, offset)| {
        let at = if method.starts_with('r') { text.rfind(wanted) } else { text.find(wanted) };
        at.map(|at| offset + text[..at].chars().count())
    });
    match found {
        Some(at) => Ok(Value::from(at)),
        None if method.ends_with("find") => Ok(Value::from(-1)),
        None => Err(refuse("substring not found")),
    }
}

/// Wider texts are refused: the width comes from the template or, worse, from a message.
const WIDTH_MAX: i64 = 1 << 16;

fn width(width: i64) -> Result<usize, Error> {
    if width > WIDTH_MAX {
        return Err(refuse("the width is above 65536"));
    }
    Ok(usize::try_from(width).unwrap_or(0))
}

fn justify(s: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (wanted, fill): (i64, Option<&str>) = from_args(args)?;
    let fill = fill.unwrap_or(" ");
    if fill.chars().count() != 1 {
        return Err(refuse("the fill character must be exactly one character long"));
    }
    let wanted = width(wanted)?;
    let missing = wanted.saturating_sub(s.chars().count());
    let left = match method {
        "ljust" => 0,
        "rjust" => missing,
        // CPython: the odd one goes left if both the gap and the width are odd.
        _ => missing / 2 + (missing & wanted & 1),
    };
    Ok(Value::from(format!("{}{s}{}", fill.repeat(left), fill.repeat(missing - left))))
}

fn zfill(s: &str, args: &[Value]) -> Result<Value, Error> {
    let (wanted,): (i64,) = from_args(args)?;
    let zeros = "0".repeat(width(wanted)?.saturating_sub(s.chars().count()));
    let sign = if s.starts_with(['+', '-']) { 1 } else { 0 };
    Ok(Value::from(format!("{}{zeros}{}", &s[..sign], &s[sign..])))
}

fn affix(s: &str, at_start: bool, args: &[Value]) -> Result<Value, Error> {
    let (wanted, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
    let Some((text, _)) = part(s, start, end) else { return Ok(Value::from(false)) };
    let fits = |w: &str| if at_start { text.starts_with(w) } else { text.ends_with(w) };
    if let Some(w) = wanted.as_str() {
        return Ok(Value::from(fits(w)));
    }
    // Python takes a tuple, not a list.
    if wanted.is_tuple() {
        return Ok(Value::from(wanted.try_iter()?.any(|w| w.as_str().is_some_and(fits))));
    }
    Err(refuse("the first argument must be a string or a tuple of strings"))
}

fn join(s: &str, args: &[Value]) -> Result<Value, Error> {
    let (values,): (&Value,) = from_args(args)?;
    let mut out = Vec::new();
    for value in values.try_iter()? {
        if value.kind() != ValueKind::String {
            return Err(refuse(&format!("expected strings to join, found {}", value.kind())));
        }
        out.push(str_of(&value));
    }
    Ok(Value::from(out.join(s)))
}

/// str.title: every letter after something that is not a letter, the rest in lower case.
fn title(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut in_word = false;
    for c in s.chars() {
        if in_word {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        in_word = c.is_alphabetic();
    }
    out
}

fn swap_case(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        if c.is_uppercase() {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
    }
    out
}

fn expand_tabs(s: &str, args: &[Value]) -> Result<Value, Error> {
    let (size,): (Option<i64>,) = from_args(args)?;
    let size = width(size.unwrap_or(8))?;
    let mut out = String::new();
    let mut column = 0;
    for c in s.chars() {
        match c {
            '\t' => {
                let gap = if size == 0 { 0 } else { size - column % size };
                out.push_str(&" ".repeat(gap));
                column += gap;
            }
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            c => {
                out.push(c);
                column += 1;
            }
        }
    }
    Ok(Value::from(out))
}
