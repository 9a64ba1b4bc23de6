//! `a ~ b` and `a % b` as Python has them. The engine's own print small floats otherwise and do not
//! format text, and cannot be replaced; so the compiled code calls functions of ours instead, under
//! names that no template can spell.

use crate::pyvalue::{as_float, str_of};
use minijinja::formatting::{format, FormatStyle};
use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

const CONCAT: &str = "~";
const REMAINDER: &str = "%";

pub fn add_to(env: &mut Environment<'static>) {
    env.add_function(CONCAT, concat);
    env.add_function(REMAINDER, remainder);
}

/// The same code with the two operators as calls. Cost: a copy of the code, some microseconds.
pub fn patched<'a>(code: &Instructions<'a>) -> Instructions<'a> {
    let mut out = Instructions::new(code.name(), code.source());
    let mut at = 0;
    while let Some(instruction) = code.get(at) {
        let instruction = match instruction {
            Instruction::StringConcat => Instruction::CallFunction(CONCAT, Some(2)),
            Instruction::Rem => Instruction::CallFunction(REMAINDER, Some(2)),
            other => other.clone(),
        };
        match (code.get_span(at), code.get_line(at)) {
            (Some(span), _) => out.add_with_span(instruction, span),
            (None, Some(line)) => {
                out.add_with_line(instruction, u16::try_from(line).unwrap_or(u16::MAX))
            }
            (None, None) => out.add(instruction),
        };
        at += 1;
    }
    out
}

fn concat(state: &State<'_, '_>, left: &Value, right: &Value) -> Result<Value, Error> {
    let text = str_of(left) + &str_of(right);
    state.consume_fuel((text.len() / 64) as u64)?;
    Ok(Value::from(text))
}

fn remainder(left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(text) = left.as_str() {
        let args: Vec<Value> = match right.is_tuple() {
            true => right.try_iter()?.collect(),
            false => vec![right.clone()],
        };
        // str() of lists, None and True is Python's, not the engine's.
        let is_plain = |v: &Value| matches!(v.kind(), ValueKind::Number | ValueKind::String);
        let printed = |v: Value| if is_plain(&v) { v } else { Value::from(str_of(&v)) };
        let args: Vec<Value> = args.into_iter().map(printed).collect();
        return format(FormatStyle::Printf, text, &args).map(Value::from);
    }
    let refuse = |text: String| Error::new(ErrorKind::InvalidOperation, text);
    let is_number = |v: &Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool);
    if !is_number(left) || !is_number(right) {
        let text = format!("tried to use % on {} and {}", left.kind(), right.kind());
        return Err(refuse(text));
    }
    if !right.is_true() {
        return Err(refuse("modulo by zero".into()));
    }
    // The sign is the divisor's.
    match (i128::try_from(left.clone()), i128::try_from(right.clone())) {
        (Ok(a), Ok(b)) if as_float(left).is_none() && as_float(right).is_none() => {
            Ok(Value::from((a % b + b) % b))
        }
        _ => {
            let (a, b) = (f64::try_from(left.clone())?, f64::try_from(right.clone())?);
            let r = a % b;
            Ok(Value::from(if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }))
        }
    }
}
