//! The regexes of Split and Replace, with limits: the library's own stop in silence at its limit,
//! and leave the rest of the text as one piece.

use crate::budget::Budget;
use crate::fail::{Fail, Result};
use fancy_regex::{Regex, RegexBuilder};
use serde_json::Value as Json;
use std::cell::Cell;
use tokenizers::tokenizer::pattern::Pattern;
use tokenizers::Offsets;

/// Steps back that one match may take: some 0.3 s.
const BACKTRACK_MAX: usize = 10_000_000;

/// Bytes of a compiled regex without look-around: its search takes time in proportion.
const REGEX_BYTES_MAX: usize = 4 << 20;

#[derive(Debug)]
pub struct Regexp {
    place: String,
    regex: Regex,
}

/// The pieces of one text, in order, and whether each is a match. Used once.
pub struct Found(Cell<Vec<(Offsets, bool)>>);

impl Regexp {
    /// `pattern`: {"String": text} or {"Regex": text}, as in a tokenizer.json.
    pub fn new(place: &str, pattern: &Json) -> Result<Regexp> {
        let text = |key: &str| pattern.get(key).and_then(Json::as_str);
        let source = match (text("String"), text("Regex")) {
            (Some(literal), None) => fancy_regex::escape(literal).into_owned(),
            (None, Some(regex)) => regex.to_string(),
            _ => return Err(Fail::corrupt(format!("{place}: pattern is no String and no Regex"))),
        };
        let regex = RegexBuilder::new(&source)
            .backtrack_limit(BACKTRACK_MAX)
            .delegate_size_limit(REGEX_BYTES_MAX)
            .build()
            .map_err(|e| Fail::corrupt(format!("{place}: the regex {source:?}: {e}")))?;
        Ok(Regexp { place: place.into(), regex })
    }

    pub fn place(&self) -> &str {
        &self.place
    }

    /// What the library's own patterns find. An empty text is one piece without a match.
    pub fn find(&self, text: &str, budget: &Budget) -> Result<Vec<(Offsets, bool)>> {
        if text.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let mut pieces = Vec::new();
        let mut end = 0;
        for found in self.regex.find_iter(text) {
            let found = found.map_err(|e| {
                let place = &self.place;
                Fail::unsupported(format!("{place}: the regex does not end on this text: {e}"))
            })?;
            if end != found.start() {
                pieces.push(((end, found.start()), false));
            }
            pieces.push(((found.start(), found.end()), true));
            end = found.end();
            budget.check_time(&self.place)?;
        }
        if end != text.len() {
            pieces.push(((end, text.len()), false));
        }
        Ok(pieces)
    }
}

impl Found {
    pub fn new(pieces: Vec<(Offsets, bool)>) -> Found {
        Found(Cell::new(pieces))
    }
}

impl Pattern for Found {
    fn find_matches(&self, _: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        Ok(self.0.take())
    }
}
