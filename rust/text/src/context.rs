//! What a template is given: the client's request in the shape that this template can use, and with
//! marks where a client's text must not become a control token (control.rs).

use crate::control::{ControlTokens, Writer};
use serde_json::{Map, Value as Json};

/// What a template does with the arguments of a tool call. Clients of the OpenAI protocol send JSON
/// text; most templates want the mapping, some the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arguments {
    Mapping,
    Text,
}

/// Adds what transformers always passes, and gives tool arguments the shape that is wanted.
pub fn prepare(request: &mut Map<String, Json>, arguments: Arguments) {
    for name in ["tools", "documents"] {
        request.entry(name).or_insert(Json::Null);
    }
    request.entry("add_generation_prompt").or_insert(Json::Bool(false));
    let Some(messages) = request.get_mut("messages").and_then(Json::as_array_mut) else { return };
    for message in messages {
        let calls = message.get_mut("tool_calls").and_then(Json::as_array_mut);
        for call in calls.into_iter().flatten() {
            let holder = if call.get("function").is_some() { &mut call["function"] } else { call };
            if let Some(value) = holder.get_mut("arguments") {
                reshape(value, arguments);
            }
        }
    }
}

/// Text that is no JSON object stays text: the template may still print it.
fn reshape(value: &mut Json, wanted: Arguments) {
    match (wanted, &*value) {
        (Arguments::Mapping, Json::String(text)) if text.trim().is_empty() => {
            *value = Json::Object(Map::new());
        }
        (Arguments::Mapping, Json::String(text)) => {
            if let Ok(parsed @ Json::Object(_)) = serde_json::from_str(text) {
                *value = parsed;
            }
        }
        (Arguments::Text, Json::Object(_)) => {
            let v = crate::pyvalue::from_json(value.clone());
            if let Ok(text) = crate::tojson::dumps(&v) {
                *value = Json::String(text);
            }
        }
        _ => {}
    }
}

/// How many texts and keys the request has.
pub fn string_count(request: &Map<String, Json>) -> u64 {
    fn count(json: &Json) -> u64 {
        match json {
            Json::Array(items) => items.iter().map(count).sum(),
            Json::Object(members) => string_count(members),
            _ => 1,
        }
    }
    request.values().map(|value| 1 + count(value)).sum()
}

/// Does any string or key hold `wanted`?
pub fn holds(json: &Json, wanted: char) -> bool {
    match json {
        Json::String(text) => text.contains(wanted),
        Json::Array(items) => items.iter().any(|item| holds(item, wanted)),
        Json::Object(members) => {
            members.iter().any(|(key, value)| key.contains(wanted) || holds(value, wanted))
        }
        _ => false,
    }
}

pub struct Marker<'a> {
    pub control: &'a ControlTokens,
    pub mark: char,
    /// How many strings got a mark.
    pub marked_count: usize,
}

impl Marker<'_> {
    /// Marks every string of the request. Names on the top level are the caller's own.
    pub fn request(&mut self, request: &mut Map<String, Json>) {
        for (name, value) in request.iter_mut() {
            match (name.as_str(), value) {
                ("messages", Json::Array(messages)) => {
                    messages.iter_mut().for_each(|message| self.message(message));
                }
                (_, value) => self.value(value, Writer::Anyone, false),
            }
        }
    }

    fn message(&mut self, message: &mut Json) {
        let is_answer = message.get("role").and_then(Json::as_str) == Some("assistant");
        let Some(members) = message.as_object_mut() else {
            return self.value(message, Writer::Anyone, false);
        };
        for (name, value) in members.iter_mut() {
            let is_text =
                matches!(name.as_str(), "content" | "reasoning_content" | "reasoning" | "thinking");
            let writer = if is_answer && is_text { Writer::Model } else { Writer::Anyone };
            self.value(value, writer, is_text);
        }
    }

    fn value(&mut self, value: &mut Json, writer: Writer, piece: bool) {
        match value {
            Json::String(text) => {
                if let Some(marked) = self.control.marked(text, writer, piece, self.mark) {
                    *text = marked;
                    self.marked_count += 1;
                }
            }
            Json::Array(items) => {
                items.iter_mut().for_each(|item| self.value(item, writer, piece));
            }
            Json::Object(members) => {
                let old = std::mem::take(members);
                for (mut key, mut value) in old {
                    let is_text = matches!(key.as_str(), "content" | "text");
                    self.value(&mut value, writer, is_text);
                    if let Some(marked) = self.control.marked(&key, writer, false, self.mark) {
                        key = marked;
                        self.marked_count += 1;
                    }
                    members.insert(key, value);
                }
            }
            _ => {}
        }
    }
}
