//! Refuses at compile time what would only be met when a rendering happens to get there: filters,
//! tests and methods that no value has.

use minijinja::machinery::{get_compiled_template, Instruction, Instructions};
use minijinja::{Environment, Template};

/// The first unknown name: where it is (byte offset of the source, if known), its line, and what.
pub struct Unknown {
    pub offset: Option<usize>,
    pub line: Option<usize>,
    pub what: String,
}

pub fn first_unknown(env: &Environment<'_>, template: &Template<'_, '_>) -> Option<Unknown> {
    let compiled = get_compiled_template(template);
    unknown_in(env, &compiled.instructions)
}

fn unknown_in(env: &Environment<'_>, code: &Instructions<'_>) -> Option<Unknown> {
    let exists = |name: &str, kind: &str| {
        let question = format!("name is {kind}");
        let answer = env
            .compile_expression(&question)
            .and_then(|e| e.eval(minijinja::context! { name => name }));
        answer.is_ok_and(|v| v.is_true())
    };
    let mut at = 0;
    while let Some(instruction) = code.get(at) {
        let what = match instruction {
            Instruction::ApplyFilter(name, ..) if !exists(name, "filter") => {
                Some(format!("no filter named '{name}'"))
            }
            Instruction::PerformTest(name, ..) if !exists(name, "test") => {
                Some(format!("no test named '{name}'"))
            }
            Instruction::CallMethod(name, ..) if !crate::pymethods::is_known(name) => {
                Some(format!("no method named '{name}'"))
            }
            _ => None,
        };
        if let Some(what) = what {
            let offset = code.get_span(at).map(|span| span.start_offset as usize);
            return Some(Unknown { offset, line: code.get_line(at), what });
        }
        at += 1;
    }
    None
}
