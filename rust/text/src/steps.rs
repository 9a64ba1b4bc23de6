//! Normalizers, pre-tokenizers and decoders of a tokenizer.json as flat lists of steps, each of
//! which is bounded before it runs (budget.rs). Results are the library's.

use crate::budget::Budget;
use crate::fail::{guarded, library, Fail, Result};
use crate::regexp::{Found, Regexp};
use serde::Serialize;
use serde_json::{json, Value as Json};
use tokenizers::tokenizer::pattern::Invert;
use tokenizers::tokenizer::{
    Decoder, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer, SplitDelimiterBehavior,
};
use tokenizers::{DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper};

/// Steps of one kind; the largest published tokenizers have some ten.
pub const STEPS_MAX: usize = 256;

/// Bytes that a step makes at most: of each byte, and of each piece.
#[derive(Clone, Copy, Debug)]
struct Growth {
    byte: usize,
    piece: usize,
}

impl Growth {
    fn of(self, bytes: usize, pieces: usize) -> usize {
        bytes.saturating_mul(self.byte).saturating_add(pieces.saturating_mul(self.piece))
    }
}

enum Normal {
    Library { place: String, step: NormalizerWrapper, growth: Growth },
    Replace { regexp: Regexp, content: String },
}

enum PreToken {
    Library { place: String, step: PreTokenizerWrapper, growth: Growth },
    Split { regexp: Regexp, prefix_space: bool, behavior: SplitDelimiterBehavior, invert: bool },
}

/// The regex of ByteLevel, which the library keeps to itself. Source: openai/gpt-2, encoder.py.
const GPT2_REGEX: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

enum Decode {
    Library { place: String, step: DecoderWrapper, growth: Growth },
    Replace { regexp: Regexp, content: String },
    Strip { content: char, start: usize, stop: usize },
}

#[derive(Default)]
pub struct Normalizers(Vec<Normal>);
#[derive(Default)]
pub struct PreTokenizers(Vec<PreToken>);
pub struct Decoders(Vec<Decode>);

/// A step as its file spells it: type and fields.
fn spelt(step: &impl Serialize) -> Json {
    serde_json::to_value(step).unwrap_or(Json::Null)
}

fn pattern_of(step: &impl Serialize) -> Json {
    spelt(step).get("pattern").cloned().unwrap_or(json!({}))
}

fn described(place: &str, step: &impl Serialize) -> String {
    match spelt(step).get("type").and_then(Json::as_str) {
        Some(kind) => format!("{place} ({kind})"),
        None => place.into(),
    }
}

fn check_count(place: &str, count: usize) -> Result<()> {
    if count < STEPS_MAX {
        return Ok(());
    }
    Err(Fail::corrupt(format!(
        "{place}: more than {STEPS_MAX} steps; expected at most {STEPS_MAX}"
    )))
}

/// The longest text that a charsmap puts for a character. Format: length of the trie in bytes, a
/// u32; the trie; then texts that end in NUL.
pub fn charsmap_growth(base64_text: &str) -> Result<usize> {
    let place = "normalizer: precompiled_charsmap";
    let bytes = base64::decode(base64_text).map_err(|e| Fail::corrupt(format!("{place}: {e}")))?;
    let length = bytes.get(..4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
    let texts = length.and_then(|n| bytes.get(4 + n as usize..)).ok_or_else(|| {
        let found = bytes.len();
        let text = format!("{place}: a trie of {} bytes in {found}", length.unwrap_or(0));
        Fail::corrupt(text)
    })?;
    Ok(texts.split(|&b| b == 0).map(<[u8]>::len).max().unwrap_or(0).max(1))
}

impl Normalizers {
    pub fn new(normalizer: Option<&NormalizerWrapper>) -> Result<Normalizers> {
        let mut steps = Normalizers::default();
        if let Some(normalizer) = normalizer {
            steps.add("normalizer", normalizer)?;
        }
        Ok(steps)
    }

    fn add(&mut self, place: &str, step: &NormalizerWrapper) -> Result<()> {
        use NormalizerWrapper as N;
        check_count(place, self.0.len())?;
        let growth = match step {
            N::Sequence(sequence) => {
                let inner = sequence.as_ref().iter().enumerate();
                return inner.fold(Ok(()), |done, (i, step)| {
                    done.and_then(|()| self.add(&format!("{place}.normalizers[{i}]"), step))
                });
            }
            N::Replace(replace) => {
                let place = described(place, step);
                let regexp = Regexp::new(&place, &pattern_of(replace))?;
                self.0.push(Normal::Replace { regexp, content: replace.content.clone() });
                return Ok(());
            }
            N::Precompiled(_) => {
                let spelt = spelt(step);
                let map = spelt.get("precompiled_charsmap").and_then(Json::as_str).unwrap_or("");
                Growth { byte: charsmap_growth(map)?, piece: 0 }
            }
            N::Prepend(prepend) => Growth { byte: 1, piece: prepend.prepend.len() },
            N::ByteLevel(_) => Growth { byte: 2, piece: 0 },
            // U+FDFA: 3 bytes become 33; decomposition and small letters alone make 3 of 1.
            N::NFKC(_) | N::NFKD(_) | N::BertNormalizer(_) => Growth { byte: 12, piece: 0 },
            _ => Growth { byte: 3, piece: 0 },
        };
        let place = described(place, step);
        self.0.push(Normal::Library { place, step: step.clone(), growth });
        Ok(())
    }

    pub fn run(&self, text: &mut NormalizedString, budget: &Budget) -> Result<()> {
        for step in &self.0 {
            match step {
                Normal::Library { place, step, growth } => {
                    budget.expect(place, growth.of(text.get().len(), 1))?;
                    guarded(place, || step.normalize(text).map_err(library))?;
                }
                Normal::Replace { regexp, content } => {
                    let pieces = regexp.find(text.get(), budget)?;
                    budget.expect(regexp.place(), replaced_bytes(&pieces, content.len()))?;
                    let found = Found::new(pieces);
                    let replace = || text.replace(found, content).map_err(library);
                    guarded(regexp.place(), replace)?;
                }
            }
        }
        budget.finish(text.get().len());
        Ok(())
    }
}

fn replaced_bytes(pieces: &[(tokenizers::Offsets, bool)], content_bytes: usize) -> usize {
    let bytes = |&((start, end), is_match): &(tokenizers::Offsets, bool)| match is_match {
        true => content_bytes,
        false => end - start,
    };
    pieces.iter().map(bytes).fold(0, usize::saturating_add)
}

impl PreTokenizers {
    pub fn new(pre_tokenizer: Option<&PreTokenizerWrapper>) -> Result<PreTokenizers> {
        let mut steps = PreTokenizers::default();
        if let Some(pre_tokenizer) = pre_tokenizer {
            steps.add("pre_tokenizer", pre_tokenizer)?;
        }
        Ok(steps)
    }

    fn add(&mut self, place: &str, step: &PreTokenizerWrapper) -> Result<()> {
        use PreTokenizerWrapper as P;
        check_count(place, self.0.len())?;
        let growth = match step {
            P::Sequence(sequence) => {
                let inner = sequence.as_ref().iter().enumerate();
                return inner.fold(Ok(()), |done, (i, step)| {
                    done.and_then(|()| self.add(&format!("{place}.pretokenizers[{i}]"), step))
                });
            }
            P::Split(split) => {
                let regexp = Regexp::new(&described(place, step), &pattern_of(split))?;
                let (behavior, invert) = (split.behavior, split.invert);
                self.0.push(PreToken::Split { regexp, prefix_space: false, behavior, invert });
                return Ok(());
            }
            P::ByteLevel(bytes) if bytes.use_regex => {
                let place_here = described(place, step);
                self.0.push(PreToken::Split {
                    regexp: Regexp::new(&place_here, &json!({ "Regex": GPT2_REGEX }))?,
                    prefix_space: bytes.add_prefix_space,
                    behavior: SplitDelimiterBehavior::Isolated,
                    invert: false,
                });
                let letters = bytes.use_regex(false).add_prefix_space(false);
                return self.add(place, &P::ByteLevel(letters));
            }
            P::ByteLevel(_) => Growth { byte: 2, piece: 1 },
            P::Metaspace(_) => Growth { byte: 4, piece: 4 },
            _ => Growth { byte: 1, piece: 0 },
        };
        let place = described(place, step);
        self.0.push(PreToken::Library { place, step: step.clone(), growth });
        Ok(())
    }

    pub fn run(&self, pieces: &mut PreTokenizedString, budget: &Budget) -> Result<()> {
        for step in &self.0 {
            match step {
                PreToken::Library { place, step, growth } => {
                    if growth.byte > 1 {
                        let splits =
                            pieces.get_splits(OffsetReferential::Original, OffsetType::None);
                        let bytes = splits.iter().map(|(text, _, _)| text.len()).sum();
                        budget.expect(place, growth.of(bytes, splits.len()))?;
                    }
                    guarded(place, || step.pre_tokenize(pieces).map_err(library))?;
                }
                PreToken::Split { regexp, prefix_space, behavior, invert } => {
                    let split = |_, mut text: NormalizedString| {
                        if *prefix_space && !text.get().starts_with(' ') {
                            text.prepend(" ");
                        }
                        let found = Found::new(regexp.find(text.get(), budget)?);
                        match invert {
                            true => text.split(Invert(found), *behavior),
                            false => text.split(found, *behavior),
                        }
                    };
                    guarded(regexp.place(), || pieces.split(split).map_err(library))?;
                }
            }
        }
        Ok(())
    }
}

impl Decoders {
    pub fn new(decoder: &DecoderWrapper) -> Result<Decoders> {
        let mut steps = Decoders(Vec::new());
        steps.add("decoder", decoder)?;
        Ok(steps)
    }

    fn add(&mut self, place: &str, step: &DecoderWrapper) -> Result<()> {
        use DecoderWrapper as D;
        check_count(place, self.0.len())?;
        match step {
            D::Sequence(sequence) => {
                for (i, step) in sequence.get_decoders().iter().enumerate() {
                    self.add(&format!("{place}.decoders[{i}]"), step)?;
                }
            }
            D::Replace(replace) => {
                let regexp = Regexp::new(&described(place, step), &pattern_of(replace))?;
                self.0.push(Decode::Replace { regexp, content: replace.content.clone() });
            }
            D::Strip(strip) => {
                let (content, start, stop) = (strip.content, strip.start, strip.stop);
                self.0.push(Decode::Strip { content, start, stop });
            }
            _ => {
                // CTC and BPEDecoder may put a space between any two letters, byte fallback and
                // byte level a replacement character for a byte.
                let growth = Growth { byte: 4, piece: 1 };
                let place = described(place, step);
                self.0.push(Decode::Library { place, step: step.clone(), growth });
            }
        }
        Ok(())
    }

    pub fn run(&self, mut tokens: Vec<String>) -> Result<String> {
        if tokens.is_empty() {
            return Ok(String::new());
        }
        let size = |tokens: &[String]| tokens.iter().map(String::len).sum::<usize>();
        let budget = Budget::new(size(&tokens));
        for step in &self.0 {
            tokens = match step {
                Decode::Library { place, step, growth } => {
                    budget.expect(place, growth.of(size(&tokens), tokens.len()))?;
                    guarded(place, || step.decode_chain(tokens).map_err(library))?
                }
                Decode::Replace { regexp, content } => {
                    replace_in_tokens(regexp, content, &tokens, &budget)?
                }
                Decode::Strip { content, start, stop } => {
                    tokens.iter().map(|t| strip(t, *content, *start, *stop)).collect()
                }
            };
        }
        Ok(tokens.concat())
    }
}

fn replace_in_tokens(
    regexp: &Regexp,
    content: &str,
    tokens: &[String],
    budget: &Budget,
) -> Result<Vec<String>> {
    let mut bytes = 0usize;
    let mut out = Vec::with_capacity(tokens.len());
    for token in tokens {
        let pieces = regexp.find(token, budget)?;
        bytes = bytes.saturating_add(replaced_bytes(&pieces, content.len()));
        budget.expect(regexp.place(), bytes)?;
        let text = |((start, end), is_match)| if is_match { content } else { &token[start..end] };
        out.push(pieces.into_iter().map(text).collect());
    }
    Ok(out)
}

/// At most `start` times `content` from the beginning, and `stop` times from the end. The library's
/// own reads before the beginning of a token that is shorter than `stop`.
fn strip(token: &str, content: char, start: usize, stop: usize) -> String {
    let mut rest = token;
    for _ in 0..start {
        let Some(shorter) = rest.strip_prefix(content) else { break };
        rest = shorter;
    }
    for _ in 0..stop {
        let Some(shorter) = rest.strip_suffix(content) else { break };
        rest = shorter;
    }
    rest.to_string()
}
