//! `a + b`, `a ~ b` and `a % b` as Python has them. The engine's own add lists without making them
//! or paying for them, print small floats otherwise and do not format text, and cannot be replaced;
//! so the compiled code calls functions of ours instead, under names that no template can spell.

use crate::pyvalue::{as_float, str_of};
use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

const ADD: &str = "+";
const CONCAT: &str = "~";
const REMAINDER: &str = "%";

pub fn add_to(env: &mut Environment<'static>) {
    env.add_function(ADD, add);
    env.add_function(CONCAT, concat);
    env.add_function(REMAINDER, remainder);
}

/// The same code with the operators as calls. Cost: a copy of the code, some microseconds.
pub fn patched<'a>(code: &Instructions<'a>) -> Instructions<'a> {
    let mut out = Instructions::new(code.name(), code.source());
    let mut at = 0;
    while let Some(instruction) = code.get(at) {
        let instruction = match instruction {
            Instruction::Add => Instruction::CallFunction(ADD, Some(2)),
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

/// A list made of two costs a step for each 8 elements: `x = x + x` doubles it with every turn.
fn add(state: &State<'_, '_>, left: &Value, right: &Value) -> Result<Value, Error> {
    let is_list =
        |v: &Value| matches!(v.kind(), ValueKind::Seq | ValueKind::Iterable) && !v.is_tuple();
    if is_list(left) && is_list(right) {
        let mut values: Vec<Value> = Vec::new();
        for item in left.try_iter()?.chain(right.try_iter()?) {
            if values.len() % 8 == 0 {
                state.consume_fuel(1)?;
            }
            values.push(item);
        }
        return Ok(Value::from(values));
    }
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        state.consume_fuel(((a.len() + b.len()) / 64) as u64)?;
        return Ok(Value::from([a, b].concat()));
    }
    // Numbers, and what cannot be added: the engine's own operator and its own words.
    let expression = state.env().compile_expression("left + right")?;
    expression.eval(minijinja::context! { left => left, right => right })
}

fn concat(state: &State<'_, '_>, left: &Value, right: &Value) -> Result<Value, Error> {
    let text = str_of(left) + &str_of(right);
    state.consume_fuel((text.len() / 64) as u64)?;
    Ok(Value::from(text))
}

fn remainder(state: &mut State, left: &Value, right: &Value) -> Result<Value, Error> {
    if left.as_str().is_some() {
        let args: Vec<Value> = match right.is_tuple() {
            true => right.try_iter()?.collect(),
            false => vec![right.clone()],
        };
        // str() of lists, None and True is Python's, not the engine's.
        let is_plain = |v: &Value| matches!(v.kind(), ValueKind::Number | ValueKind::String);
        let printed = |v: Value| if is_plain(&v) { v } else { Value::from(str_of(&v)) };
        // The filter pays for widths and precisions, which may be any number.
        let args: Vec<Value> =
            [left.clone()].into_iter().chain(args.into_iter().map(printed)).collect();
        return state.apply_filter("format", &args);
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
