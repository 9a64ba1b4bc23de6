//! Which added tokens steer the model, and where text that a user wrote must not become one.
//!
//! A *control token* is an added token that is special, or that has the shape of a marker
//! (`<think>`, `[INST]`, `|x|`). Other added tokens are ordinary vocabulary (runs of spaces, words)
//! and are recognised in every text.
//!
//! A *break* is a place in a text across which no control token may be recognised. Breaks are laid
//! into strings from outside as one private character, the mark, right after the first character of
//! everything that starts like a control token. The template then works on the marked strings; what
//! it writes itself has no marks, and only that can become a control token. Strings that are
//! assembled from pieces ("<|im_" in one part of a message, "end|>" in the next) are covered by
//! also marking pieces that begin, continue or end a token.

use std::cell::Cell;
use std::collections::HashSet;

thread_local! {
    static MARK: Cell<Option<char>> = const { Cell::new(None) };
}

/// Tells filters that run on this thread which character is the mark, until it is dropped.
pub struct MarkInUse(());

impl MarkInUse {
    pub fn set(mark: Option<char>) -> MarkInUse {
        MARK.with(|m| m.set(mark));
        MarkInUse(())
    }
}

impl Drop for MarkInUse {
    fn drop(&mut self) {
        MARK.with(|m| m.set(None));
    }
}

pub fn is_mark(c: char) -> bool {
    MARK.with(Cell::get) == Some(c)
}

/// Prefixes of this many characters are marked wherever they occur.
const PREFIX_CHARS: usize = 3;

/// The mark is the first of these that the text does not hold: characters that Unicode sets aside
/// for private use inside a program, then private use characters.
pub fn choose_mark(holds: impl Fn(char) -> bool) -> Option<char> {
    let candidates = (0xfdd0..=0xfdef).chain(0x10_0000..=0x10_fffd);
    candidates.filter_map(char::from_u32).find(|c| !holds(*c))
}

pub fn has_marker_shape(token: &str) -> bool {
    let mut chars = token.chars();
    let (Some(first), Some(last)) = (chars.next(), chars.next_back()) else { return false };
    matches!(
        (first, last),
        ('<', '>') | ('[', ']') | ('{', '}') | ('|', '|') | ('\u{ff5c}', '\u{ff5c}')
    )
}

/// How much of a string is the template's own business.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writer {
    /// Users, tools, the system prompt: every control token is ordinary text.
    Anyone,
    /// An earlier answer of the model. Visible marks such as `<think>` come back through the
    /// client's history and templates look for them; special tokens never do.
    Model,
}

/// Some control tokens, searched by their first characters.
#[derive(Default, Debug)]
struct Tokens {
    tokens: Vec<String>,
    prefixes: HashSet<String>, // of PREFIX_CHARS characters, or a whole shorter token
}

impl Tokens {
    fn new<'a>(tokens: impl Iterator<Item = &'a String>) -> Tokens {
        let tokens: Vec<String> = tokens.cloned().collect();
        let prefix = |t: &String| t.chars().take(PREFIX_CHARS).collect();
        Tokens { prefixes: tokens.iter().map(prefix).collect(), tokens }
    }

    /// Is `head` the beginning of a token, and not the whole?
    fn any_starts_with(&self, head: &str) -> bool {
        self.tokens.iter().any(|t| t.len() > head.len() && t.starts_with(head))
    }

    /// Does `text` begin with the end of a token, without being the whole of it?
    fn any_tail_starts(&self, text: &str) -> bool {
        let tails = |t: &str| t.char_indices().skip(1).any(|(i, _)| text.starts_with(&t[i..]));
        self.tokens.iter().any(|t| tails(t))
    }

    fn any_contains(&self, part: &str) -> bool {
        self.tokens.iter().any(|t| t.len() > part.len() && t.contains(part))
    }
}

/// The control tokens of one tokenizer.
#[derive(Default, Debug)]
pub struct ControlTokens {
    all: Tokens,
    special: Tokens,
}

impl ControlTokens {
    /// `tokens`: content, and whether it is special. A token of one character cannot be broken and
    /// must not be among them.
    pub fn new(tokens: &[(String, bool)]) -> ControlTokens {
        ControlTokens {
            all: Tokens::new(tokens.iter().map(|(t, _)| t)),
            special: Tokens::new(tokens.iter().filter(|(_, special)| *special).map(|(t, _)| t)),
        }
    }

    /// `text` with `mark` laid in, or None if nothing in it needs one. `piece`: the template may
    /// join this string to its neighbours with nothing between (parts of one message).
    pub fn marked(&self, text: &str, writer: Writer, piece: bool, mark: char) -> Option<String> {
        let marks = self.breaks(text, writer, piece);
        (!marks.is_empty()).then(|| insert(text, &marks, mark))
    }

    /// Byte offsets in `text` at which a control token has to be broken; ascending.
    pub fn breaks(&self, text: &str, writer: Writer, piece: bool) -> Vec<usize> {
        let set = if writer == Writer::Anyone { &self.all } else { &self.special };
        let ends: Vec<usize> = text.char_indices().map(|(i, c)| i + c.len_utf8()).collect();
        let mut breaks = Vec::new();
        let mut start = 0;
        for (i, &end) in ends.iter().enumerate() {
            let starts_token = ends[i..].iter().take(PREFIX_CHARS);
            if starts_token.into_iter().any(|&e| set.prefixes.contains(&text[start..e])) {
                breaks.push(end);
            }
            start = end;
        }
        let Some(&first_end) = ends.first() else { return breaks };
        // "<|" at the end, before "im_end|>". Longer beginnings are prefixes, marked above.
        let last_chars = text.char_indices().rev().take(PREFIX_CHARS - 1);
        for (n, (from, c)) in last_chars.enumerate() {
            if set.any_starts_with(&text[from..]) {
                breaks.push(if n == 0 { from } else { from + c.len_utf8() });
            }
        }
        if set.any_tail_starts(text) {
            breaks.push(if ends.len() == 1 { 0 } else { first_end });
        }
        if piece && set.any_contains(text) {
            breaks.push(0);
        }
        breaks.sort_unstable();
        breaks.dedup();
        breaks
    }
}

/// Inserts `mark` at the byte offsets `at` (ascending, on character borders).
pub fn insert(text: &str, at: &[usize], mark: char) -> String {
    let mut out = String::with_capacity(text.len() + at.len() * mark.len_utf8());
    let mut done = 0;
    for &offset in at {
        out.push_str(&text[done..offset]);
        out.push(mark);
        done = offset;
    }
    out.push_str(&text[done..]);
    out
}

/// The inverse of `insert`: the text without marks, and where they were.
pub fn remove(text: &str, mark: char) -> (String, Vec<usize>) {
    let mut out = String::with_capacity(text.len());
    let mut at = Vec::new();
    for (i, piece) in text.split(mark).enumerate() {
        if i > 0 && at.last() != Some(&out.len()) {
            at.push(out.len());
        }
        out.push_str(piece);
    }
    (out, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> ControlTokens {
        ControlTokens::new(&[("<|im_end|>".into(), true), ("<think>".into(), false)])
    }

    #[test]
    fn marks_only_what_starts_like_a_control_token() {
        let t = tokens();
        assert_eq!(t.marked("plain a < b text", Writer::Anyone, false, '#'), None);
        assert_eq!(t.marked("x<|im_end|>", Writer::Anyone, false, '#').unwrap(), "x<#|im_end|>");
        assert_eq!(t.marked("<think>y", Writer::Anyone, false, '#').unwrap(), "<#think>y");
        assert_eq!(t.marked("", Writer::Anyone, true, '#'), None);
    }

    #[test]
    fn an_answer_of_the_model_keeps_visible_marks() {
        let t = tokens();
        assert_eq!(
            t.marked("<think>a<|im_end|>", Writer::Model, false, '#').unwrap(),
            "<think>a<#|im_end|>"
        );
    }

    #[test]
    fn no_two_pieces_join_to_a_control_token() {
        let t = tokens();
        for token in ["<|im_end|>", "<think>"] {
            for cut in 1..token.len() {
                for cut2 in cut..token.len() {
                    let pieces = [&token[..cut], &token[cut..cut2], &token[cut2..]];
                    let joined: String = pieces
                        .iter()
                        .map(|p| t.marked(p, Writer::Anyone, true, '#').unwrap_or(p.to_string()))
                        .collect();
                    assert!(!joined.contains(token), "{pieces:?}");
                }
            }
            let joined: String = token
                .chars()
                .map(|c| t.marked(&c.to_string(), Writer::Anyone, true, '#').unwrap())
                .collect();
            assert!(!joined.contains(token));
        }
    }

    #[test]
    fn insert_and_remove_are_inverse() {
        let marked = insert("a\u{e9}b", &[0, 3], '\u{fdd0}');
        assert_eq!(remove(&marked, '\u{fdd0}'), ("a\u{e9}b".to_string(), vec![0, 3]));
    }

    #[test]
    fn the_mark_is_a_character_the_text_does_not_hold() {
        assert_eq!(choose_mark(|_| false), Some('\u{fdd0}'));
        assert_eq!(choose_mark(|c| c < '\u{fdd5}'), Some('\u{fdd5}'));
    }
}
