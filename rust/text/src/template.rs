//! A chat template: compiled once, rendered for each conversation as transformers renders it.

use crate::check::first_unknown;
use crate::clock::Now;
use crate::context::{self, holds, prepare, Arguments, Marker};
use crate::control::{self, ControlTokens, MarkInUse};
use crate::deep;
use crate::fail::{Fail, Result};
use crate::generation;
use crate::operators;
use crate::python::{environment, Raised};
use crate::pyvalue::from_json;
use minijinja::machinery::{eval, get_compiled_template, make_string_output};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use serde_json::{json, Map, Value as Json};
use std::collections::BTreeMap;

const NAME: &str = "chat template";

/// Conversations longer than this get no index of the offending message: finding it renders every
/// beginning of the conversation.
const BLAME_MAX: usize = 64;

/// Steps of the interpreter that one rendering may take: a fixed part, and some for every text and
/// key of the request. The templates of the tests take up to 16 for each. A step also pays for 64
/// bytes of output.
const FUEL_MIN: u64 = 200_000;
const FUEL_PER_STRING: u64 = 150;

/// Signs of concatenation: the compiler takes time that grows with the cube of their chains (11 s
/// for 16,000). The largest published templates have some hundred.
const CONCATENATIONS_MAX: usize = 2000;

/// Bytes of a template's text: the largest published ones have some 40 KB.
pub const SOURCE_BYTES_MAX: usize = 128 << 10;

/// What a rendering has beside the request.
#[derive(Clone, Copy, Default)]
struct How {
    now: Option<i64>,
    mark: Option<char>,
}

pub struct Template {
    env: Environment<'static>,
    arguments: Arguments,
}

/// Text, with the places that keep what users wrote from becoming control tokens.
#[derive(Debug, PartialEq)]
pub struct Prompt {
    pub text: String,
    pub breaks: Vec<usize>,
    /// The template looked at a control token inside a message, and decided otherwise because it
    /// was marked: `text` is safe, but not what transformers would have rendered.
    pub differs: bool,
}

fn position(source: &str, offset: usize) -> (usize, usize) {
    let before = &source[..source.floor_boundary(offset)];
    let line_start = before.rfind('\n').map_or(0, |i| i + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

trait FloorBoundary {
    fn floor_boundary(&self, offset: usize) -> usize;
}

impl FloorBoundary for str {
    fn floor_boundary(&self, offset: usize) -> usize {
        (0..=offset.min(self.len())).rev().find(|&i| self.is_char_boundary(i)).unwrap_or(0)
    }
}

/// "line 3, column 7: what minijinja says".
fn describe(error: &Error, source: &str) -> String {
    let what = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    match (error.range(), error.line()) {
        (Some(range), _) if range.end > 0 => {
            let (line, column) = position(source, range.start);
            format!("line {line}, column {column}: {what}")
        }
        (_, Some(line)) => format!("line {line}: {what}"),
        _ => what,
    }
}

fn cause<T: std::error::Error + 'static>(error: &Error) -> Option<&T> {
    let mut cause = Some(error as &(dyn std::error::Error + 'static));
    while let Some(e) = cause {
        if let Some(found) = e.downcast_ref::<T>() {
            return Some(found);
        }
        cause = e.source();
    }
    None
}

fn raised(error: &Error) -> Option<&Raised> {
    cause(error)
}

fn no_thread(purpose: &str, stack_bytes: u64, e: &std::io::Error) -> Fail {
    Fail::exhausted(format!(
        "the chat template: no thread to {purpose} on, with a stack of {stack_bytes} bytes of \
         address space: {e}"
    ))
}

fn compile(source: &str, globals: Map<String, Json>) -> Result<Environment<'static>> {
    // Jinja2 reads every line end of the source as a line feed.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let rewritten = generation::rewrite(&source);
    let refuse = |e: Error| Fail::unsupported(describe(&e, &source));
    let mut env = environment().map_err(refuse)?;
    for (name, value) in globals {
        env.add_global(name, from_json(value));
    }
    env.add_template_owned(NAME, rewritten).map_err(refuse)?;
    if let Some(unknown) = first_unknown(&env, &env.get_template(NAME).map_err(refuse)?) {
        let place = match (unknown.offset, unknown.line) {
            (Some(offset), _) => {
                let (line, column) = position(&source, offset);
                format!("line {line}, column {column}: ")
            }
            (None, Some(line)) => format!("line {line}: "),
            (None, None) => String::new(),
        };
        return Err(Fail::unsupported(format!("{place}{}", unknown.what)));
    }
    Ok(env)
}

impl Template {
    /// `globals`: names that are the model's own, such as bos_token.
    pub fn new(source: &str, globals: Map<String, Json>) -> Result<Template> {
        if source.len() > SOURCE_BYTES_MAX {
            let length = source.len();
            let text = format!("{length} bytes, a template has at most {SOURCE_BYTES_MAX}");
            return Err(Fail::unsupported(text));
        }
        let concatenation_count = source.matches('~').count();
        if concatenation_count > CONCATENATIONS_MAX {
            let text =
                format!("{concatenation_count} signs ~, at most {CONCATENATIONS_MAX} compile");
            return Err(Fail::unsupported(text));
        }
        let stack_bytes = deep::stack_for_source(source.len());
        let env = deep::run(stack_bytes, || compile(source, globals))
            .map_err(|e| no_thread("compile", stack_bytes, &e))??;
        let mut template = Template { env, arguments: Arguments::Mapping };
        template.arguments = template.probe_arguments();
        Ok(template)
    }

    pub fn arguments(&self) -> Arguments {
        self.arguments
    }

    fn run(&self, request: Map<String, Json>, how: How) -> std::result::Result<String, Error> {
        let mut env = self.env.clone(); // shares everything; the fuel is its own
        let fuel = FUEL_MIN + FUEL_PER_STRING * context::string_count(&request);
        env.set_fuel(Some(fuel));
        let rendered = deep::run(deep::stack_for_fuel(fuel), || {
            let _now = Now::set(how.now);
            let _mark = MarkInUse::set(how.mark);
            let template = env.get_template(NAME)?;
            let code = operators::patched(&get_compiled_template(&template).instructions);
            let mut text = String::new();
            let mut output = make_string_output(&mut text);
            let names = from_json(Json::Object(request));
            eval(&env, &code, names, &BTreeMap::new(), &mut output, AutoEscape::None)?;
            drop(output);
            Ok(text)
        });
        rendered.unwrap_or_else(|e| {
            let fail = no_thread("render", deep::stack_for_fuel(fuel), &e);
            Err(Error::new(ErrorKind::InvalidOperation, "no thread").with_source(fail))
        })
    }

    /// `control`: the tokens that no text of the request may become. `now`: seconds since 1970.
    pub fn render(
        &self,
        request: &[u8],
        control: Option<&ControlTokens>,
        now: Option<i64>,
    ) -> Result<Prompt> {
        let json = serde_json::from_slice(request)
            .map_err(|e| Fail::invalid(format!("the request is not JSON: {e}")))?;
        let Json::Object(mut request) = json else {
            return Err(Fail::invalid("the request is not a JSON object"));
        };
        prepare(&mut request, self.arguments);
        let how = How { now, mark: None };
        let text = self.run(request.clone(), how).map_err(|e| self.failure(&e, &request, how))?;
        let plain = Prompt { text, breaks: Vec::new(), differs: false };
        match control {
            Some(control) => self.render_marked(request, control, plain, now),
            None => Ok(plain),
        }
    }

    fn render_marked(
        &self,
        request: Map<String, Json>,
        control: &ControlTokens,
        plain: Prompt,
        now: Option<i64>,
    ) -> Result<Prompt> {
        let mut marked = Json::Object(request);
        let mark = control::choose_mark(|c| plain.text.contains(c) || holds(&marked, c))
            .ok_or_else(|| Fail::invalid("the messages hold every private character"))?;
        let mut marker = Marker { control, mark, marked_count: 0 };
        let Some(members) = marked.as_object_mut() else { return Ok(plain) };
        marker.request(members);
        if marker.marked_count == 0 {
            return Ok(plain);
        }
        let members = std::mem::take(members);
        let how = How { now, mark: Some(mark) };
        let output = self.run(members.clone(), how).map_err(|e| {
            let failure = self.failure(&e, &members, how);
            Fail { text: failure.text.replace(mark, ""), ..failure }
        })?;
        let (text, breaks) = control::remove(&output, mark);
        Ok(Prompt { differs: text != plain.text, text, breaks })
    }

    fn failure(&self, error: &Error, request: &Map<String, Json>, how: How) -> Fail {
        if let Some(fail) = cause::<Fail>(error) {
            return Fail { code: fail.code, text: fail.text.clone() };
        }
        let Some(Raised(text)) = raised(error) else {
            let source = self.env.get_template(NAME).map_or(String::new(), |t| t.source().into());
            return Fail::invalid(format!("the chat template: {}", describe(error, &source)));
        };
        let place = match self.blame(request, text, how) {
            Some(index) => format!(" (message {index})"),
            None => String::new(),
        };
        Fail::invalid(format!("the chat template refuses the conversation: {text}{place}"))
    }

    /// The index of the first message with which the template raises `text`.
    fn blame(&self, request: &Map<String, Json>, text: &str, how: How) -> Option<usize> {
        let messages = request.get("messages")?.as_array()?;
        if messages.len() > BLAME_MAX {
            return None;
        }
        let raises = |count: usize| {
            let mut shorter = request.clone();
            shorter.insert("messages".into(), Json::from(&messages[..count]));
            let error = self.run(shorter, how).err();
            error.as_ref().and_then(raised).is_some_and(|r| r.0 == text)
        };
        // With no messages at all it may raise for another reason.
        (1..=messages.len()).find(|&count| raises(count)).map(|count| count - 1)
    }

    /// Renders a tool call with its arguments in both shapes, and looks which one comes out whole.
    fn probe_arguments(&self) -> Arguments {
        let mapping = json!({"smoe_key": "smoe_value"});
        let text = Json::from(mapping.to_string().replace(':', ": "));
        let works = |arguments: &Json, request: &dyn Fn(&Json) -> Json| {
            let Json::Object(mut members) = request(arguments) else { return false };
            // Not prepare(): it would reshape what is being probed.
            members.insert("documents".into(), Json::Null);
            self.run(members, How::default()).is_ok_and(|out| {
                let whole = out.contains("smoe_key") && out.contains("smoe_value");
                whole && !out.contains("{'smoe_key") && !out.contains("\\\"smoe_key")
            })
        };
        for content in [Json::from(""), Json::Null, Json::from("x")] {
            for tools in [probe_tools(), Json::Null] {
                let request = |arguments: &Json| probe_request(arguments, &content, &tools);
                if works(&mapping, &request) {
                    return Arguments::Mapping;
                }
                if works(&text, &request) {
                    return Arguments::Text;
                }
            }
        }
        Arguments::Mapping
    }
}

fn probe_tools() -> Json {
    json!([{"type": "function", "function": {
        "name": "f", "description": "d",
        "parameters": {"type": "object", "properties": {"smoe": {"type": "string",
                       "description": "d"}}, "required": ["smoe"]}}}])
}

fn probe_request(arguments: &Json, content: &Json, tools: &Json) -> Json {
    // Some templates insist on an id of nine letters and digits.
    json!({
        "messages": [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": content, "tool_calls": [{
                "id": "call12345", "type": "function",
                "function": {"name": "f", "arguments": arguments}}]},
            {"role": "tool", "name": "f", "tool_call_id": "call12345", "content": "r"},
        ],
        "tools": tools,
        "add_generation_prompt": true,
    })
}
