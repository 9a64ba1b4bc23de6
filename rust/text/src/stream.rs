//! Text of an answer while it grows: each push returns what has become certain, whole characters
//! only. The sum of all deltas is what decoding all ids at once gives.

use crate::fail::{Fail, Result};
use crate::tokenizer::Tokenizer;
use std::sync::Arc;

/// Tokens that may be held back for a character to complete: UTF-8 has at most four bytes.
const HELD_MAX: usize = 3;

/// Ids kept before the held ones, so that a decoder that treats the first token of a text in a
/// special way does not do so in the middle.
const CONTEXT_MAX: usize = 8;

pub struct Stream {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    pending: Vec<u8>, // byte-level: bytes of an unfinished character
    ids: Vec<u32>,    // other decoders: context, then what is held
    held: usize,
}

impl Stream {
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Stream {
        Stream { tokenizer, skip_special, pending: Vec::new(), ids: Vec::new(), held: 0 }
    }

    pub fn push(&mut self, id: u32) -> Result<String> {
        self.tokenizer.check_id(id)?;
        if self.skip_special && self.tokenizer.is_special(id) {
            return Ok(String::new());
        }
        if self.tokenizer.is_byte_level() {
            self.pending.extend(self.tokenizer.word(id));
            return Ok(self.drain(false));
        }
        self.ids.push(id);
        self.held += 1;
        let text = self.held_text()?;
        if text.ends_with('\u{fffd}') && self.held <= HELD_MAX {
            return Ok(String::new());
        }
        self.release();
        Ok(text)
    }

    /// What is left when no more ids follow: one replacement character for an unfinished one.
    pub fn finish(&mut self) -> Result<String> {
        if self.tokenizer.is_byte_level() {
            return Ok(self.drain(true));
        }
        let text = if self.held > 0 { self.held_text()? } else { String::new() };
        self.ids.clear();
        self.held = 0;
        Ok(text)
    }

    /// Moves all whole characters out of `pending`. Bytes that can never become a character give
    /// one U+FFFD per maximal part, like Python's errors="replace".
    fn drain(&mut self, end: bool) -> String {
        let mut out = String::new();
        loop {
            let (valid, bad) = match std::str::from_utf8(&self.pending) {
                Ok(text) => (text.len(), Some(0)),
                Err(e) => (e.valid_up_to(), e.error_len()),
            };
            out.push_str(&String::from_utf8_lossy(&self.pending[..valid]));
            self.pending.drain(..valid);
            match bad {
                _ if self.pending.is_empty() => return out,
                Some(bad) => {
                    out.push('\u{fffd}');
                    self.pending.drain(..bad);
                }
                None if end => {
                    out.push('\u{fffd}');
                    self.pending.clear();
                }
                None => return out,
            }
        }
    }

    /// The text of the held ids: what they add to the text of the context.
    fn held_text(&self) -> Result<String> {
        let decode = |ids: &[u32]| self.tokenizer.decode_reference(ids, self.skip_special);
        let context = decode(&self.ids[..self.ids.len() - self.held])?;
        let all = decode(&self.ids)?;
        if let Some(text) = all.strip_prefix(&context) {
            return Ok(text.to_string());
        }
        // A broken byte after a finished character makes some decoders take the whole run of bytes
        // as broken. What was sent stays sent.
        decode(&self.ids[self.ids.len() - self.held..])
    }

    fn release(&mut self) {
        self.held = 0;
        let surplus = self.ids.len().saturating_sub(CONTEXT_MAX);
        self.ids.drain(..surplus);
    }
}

/// All ids at once. Equal to the reference library, but for vocabularies with byte fallback in
/// which broken bytes follow whole characters: the library then replaces those characters too. A
/// stream cannot take that back, and both ways of decoding must agree.
pub fn decode(tokenizer: &Arc<Tokenizer>, ids: &[u32], skip_special: bool) -> Result<String> {
    ids.iter().try_for_each(|&id| tokenizer.check_id(id))?;
    let text = tokenizer.decode_reference(ids, skip_special)?;
    if tokenizer.is_byte_level() || !text.contains('\u{fffd}') {
        return Ok(text);
    }
    let mut stream = Stream::new(tokenizer.clone(), skip_special);
    let mut out = String::new();
    for &id in ids {
        out.push_str(&stream.push(id)?);
    }
    out.push_str(&stream.finish()?);
    Ok(out)
}

impl From<std::str::Utf8Error> for Fail {
    fn from(e: std::str::Utf8Error) -> Fail {
        Fail::invalid(format!("the text is not UTF-8: {e}"))
    }
}
