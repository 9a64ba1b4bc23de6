//! The reference library's tokenizer, with control over which added tokens a text may hold.

use crate::budget::Budget;
use crate::control::{self, ControlTokens, Writer};
use crate::fail::{guarded, library, Fail, Result};
use crate::limits;
use crate::steps::{Decoders, Normalizers, PreTokenizers};
use std::collections::HashSet;
use std::sync::{LazyLock, OnceLock};
use tokenizers::tokenizer::{
    AddedVocabulary, Model, NormalizedString, Normalizer, OffsetType, PostProcessor,
    PreTokenizedString,
};
use tokenizers::DecoderWrapper;

/// Which added tokens are recognised in a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parse {
    /// All, as the reference library does.
    All,
    /// All but special ones (the library's `encode_special_tokens`).
    NotSpecial,
    /// None that steers the model (control.rs).
    NoControl,
}

/// Ids may have gaps, but masks and tables are sized by the largest id: so many ids without a token
/// are fine.
const GAP_MAX: usize = 1 << 20;

/// Bytes of the tokens that are decoded at once.
const DECODE_BYTES_MAX: usize = 1 << 30;

/// The letters of byte-level vocabularies are below this.
const LETTER_MAX: usize = 0x144;

/// The byte that each letter stands for; above 255 where it stands for none.
static BYTE_OF_LETTER: LazyLock<[u16; LETTER_MAX]> = LazyLock::new(|| {
    let mut table = [u16::MAX; LETTER_MAX];
    let mut next = 0x100;
    for byte in 0..=255u8 {
        let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let letter = if printable { usize::from(byte) } else { next };
        next += usize::from(!printable);
        table[letter] = byte.into();
    }
    table
});

fn byte_of(letter: char) -> Option<u8> {
    u8::try_from(*BYTE_OF_LETTER.get(letter as usize)?).ok()
}

pub struct Tokenizer {
    hf: tokenizers::Tokenizer,
    normalizers: Normalizers,
    pre_tokenizers: PreTokenizers,
    decoders: Option<Decoders>,
    byte_level: bool,
    vocab_size: u32,
    control: ControlTokens,
    control_ids: HashSet<u32>,
    /// Copies of the added vocabulary that leave special, and control, tokens alone.
    not_special: AddedVocabulary,
    no_control: AddedVocabulary,
    /// As the whole added vocabulary, with control tokens matched before normalisation: a mark is
    /// removed by the normaliser, and must have done its work by then.
    marked: AddedVocabulary,
}

impl Tokenizer {
    pub fn load(json: &[u8]) -> Result<Tokenizer> {
        limits::check_file(json)?;
        let mut hf = guarded("tokenizer", || {
            tokenizers::Tokenizer::from_bytes(json)
                .map_err(|e| limits::with_types(library(e), json))
        })?;
        limits::check_model(hf.get_model())?;
        hf.with_padding(None);
        hf.with_truncation(None).map_err(library)?;

        let added = hf.get_added_vocabulary();
        let is_control = |t: &str, special: bool| {
            t.chars().nth(1).is_some() && (special || control::has_marker_shape(t))
        };
        let mut tokens: Vec<_> = added
            .get_added_tokens_decoder()
            .values()
            .filter(|t| is_control(&t.content, t.special))
            .cloned()
            .collect();
        tokens.sort_by(|a, b| a.content.cmp(&b.content));
        let control_ids = tokens.iter().filter_map(|t| hf.token_to_id(&t.content)).collect();
        let control: Vec<_> = tokens.iter().map(|t| (t.content.clone(), t.special)).collect();

        let mut not_special = added.clone();
        not_special.set_encode_special_tokens(true);
        let mut no_control = not_special.clone();
        let as_special = tokens.iter().cloned().map(|t| t.special(true));
        no_control.add_tokens(as_special, hf.get_model(), hf.get_normalizer()).map_err(library)?;
        let mut marked = added.clone();
        let as_written = tokens.iter().cloned().map(|t| t.normalized(false));
        marked.add_tokens(as_written, hf.get_model(), hf.get_normalizer()).map_err(library)?;

        let ids = hf.get_vocab(true);
        limits::check_longest(hf.get_model(), ids.keys().map(String::len).max().unwrap_or(0))?;
        let vocab_size = ids.values().max().map_or(0, |id| id.saturating_add(1));
        if vocab_size as usize > ids.len() + GAP_MAX {
            return Err(Fail::corrupt(format!(
                "the largest id is {}, but there are only {} tokens",
                vocab_size - 1,
                ids.len()
            )));
        }
        Ok(Tokenizer {
            normalizers: Normalizers::new(hf.get_normalizer())?,
            pre_tokenizers: PreTokenizers::new(hf.get_pre_tokenizer())?,
            decoders: hf.get_decoder().map(Decoders::new).transpose()?,
            byte_level: matches!(hf.get_decoder(), Some(DecoderWrapper::ByteLevel(_))),
            vocab_size,
            control: ControlTokens::new(&control),
            control_ids,
            not_special,
            no_control,
            marked,
            hf,
        })
    }

    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    pub fn control(&self) -> &ControlTokens {
        &self.control
    }

    pub fn is_byte_level(&self) -> bool {
        self.byte_level
    }

    pub fn token_text(&self, id: u32) -> Option<String> {
        self.hf.id_to_token(id)
    }

    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.hf.token_to_id(text)
    }

    pub fn is_special(&self, id: u32) -> bool {
        let added = self.hf.get_added_vocabulary().get_added_tokens_decoder();
        added.get(&id).is_some_and(|t| t.special)
    }

    /// The ids that the tokenizer's own post-processor puts in front of a text (usually one BOS).
    pub fn prefix(&self) -> Result<Vec<u32>> {
        for text in ["a", "1", "!", " "] {
            let plain = self.encode(text, false, Parse::All)?;
            let mut full = self.encode(text, true, Parse::All)?;
            let at = full.windows(plain.len().max(1)).position(|w| w == plain);
            if let Some(at) = at {
                full.truncate(at);
                return Ok(full);
            }
        }
        Ok(Vec::new())
    }

    pub fn encode(&self, text: &str, add_special: bool, parse: Parse) -> Result<Vec<u32>> {
        let added = match parse {
            Parse::All => self.hf.get_added_vocabulary(),
            Parse::NotSpecial => &self.not_special,
            Parse::NoControl => &self.no_control,
        };
        self.run(added, text, None, add_special, parse)
    }

    /// Encodes the whole text at once, but recognises no control token across one of `breaks`
    /// (byte offsets, ascending). Equal to `encode` where no control token spans a break.
    pub fn encode_broken(
        &self,
        text: &str,
        breaks: &[usize],
        add_special: bool,
    ) -> Result<Vec<u32>> {
        if breaks.is_empty() {
            return self.encode(text, add_special, Parse::All);
        }
        let ascending = breaks.windows(2).all(|w| w[0] < w[1]);
        if !ascending || breaks.iter().any(|&b| !text.is_char_boundary(b)) {
            return Err(Fail::invalid("breaks: expected ascending offsets of characters"));
        }
        let mark = control::choose_mark(|c| text.contains(c))
            .ok_or_else(|| Fail::invalid("the text holds every private character"))?;
        let marked = control::insert(text, breaks, mark);
        self.run(&self.marked, &marked, Some(mark), add_special, Parse::NoControl)
    }

    /// The places at which `encode_broken` must break `text` so that it is ordinary text.
    pub fn breaks(&self, text: &str) -> Vec<usize> {
        self.control.breaks(text, Writer::Anyone, false)
    }

    /// What the library does, step by step. A vocabulary could make a control token out of ordinary
    /// text: where none may be made, there is no safe way to encode that text.
    fn run(
        &self,
        added: &AddedVocabulary,
        text: &str,
        mark: Option<char>,
        add_special: bool,
        parse: Parse,
    ) -> Result<Vec<u32>> {
        let budget = Budget::new(text.len());
        let bounded = Bounded { mark, steps: &self.normalizers, budget, fail: OnceLock::new() };
        let mut pieces =
            guarded("normalizer", || Ok(added.extract_and_normalize(Some(&bounded), text)))?;
        if let Some(fail) = bounded.fail.into_inner() {
            return Err(fail);
        }
        let wanted = self.control_count(&pieces);
        let budget = Budget::new(text.len());
        self.pre_tokenizers.run(&mut pieces, &budget)?;
        let encoding = guarded("model", || {
            self.hf.get_model().tokenize_in_pretokenized(&mut pieces, None).map_err(library)?;
            pieces.into_encoding(None, 0, OffsetType::None).map_err(library)
        })?;
        let is_control = |id: &&u32| self.control_ids.contains(id);
        let found = encoding.get_ids().iter().filter(is_control).count();
        if parse != Parse::All && found != wanted {
            return Err(Fail::unsupported(
                "this vocabulary makes control tokens out of ordinary text",
            ));
        }
        let encoding = match self.hf.get_post_processor() {
            Some(processor) => guarded("post_processor", || {
                processor.process(encoding, None, add_special).map_err(library)
            })?,
            None => encoding,
        };
        Ok(encoding.get_ids().to_vec())
    }

    fn control_count(&self, pieces: &PreTokenizedString) -> usize {
        let splits = pieces.get_splits(tokenizers::OffsetReferential::Original, OffsetType::None);
        let ids = splits.iter().flat_map(|(_, _, tokens)| tokens.iter().flatten());
        ids.filter(|token| self.control_ids.contains(&token.id)).count()
    }

    pub fn check_id(&self, id: u32) -> Result<()> {
        if id < self.vocab_size {
            return Ok(());
        }
        Err(Fail::invalid(format!(
            "token id {id} is out of range: the vocabulary has {} ids",
            self.vocab_size
        )))
    }

    /// All ids at once, by the reference library. Ids that are out of range are left out.
    pub fn decode_reference(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        let added = self.hf.get_added_vocabulary();
        let mut bytes = 0;
        let mut tokens = Vec::with_capacity(ids.len());
        for token in ids.iter().filter_map(|&id| self.hf.id_to_token(id)) {
            if skip_special && added.is_special_token(&token) {
                continue;
            }
            bytes += token.len();
            if bytes > DECODE_BYTES_MAX {
                let text = format!("{} ids: more than {DECODE_BYTES_MAX} bytes of text", ids.len());
                return Err(Fail::exhausted(text));
            }
            tokens.push(token);
        }
        match &self.decoders {
            Some(decoders) => decoders.run(tokens),
            None => Ok(tokens.join(" ")),
        }
    }

    /// The bytes of token `id` of a byte-level vocabulary; none for an id without a token.
    pub fn word(&self, id: u32) -> Vec<u8> {
        let added = self.hf.get_added_vocabulary();
        let text = added.simple_id_to_token(id).or_else(|| self.hf.get_model().id_to_token(id));
        let Some(text) = text else { return Vec::new() };
        // As the library's decoder: a token with any other character stands for itself.
        let bytes: Option<Vec<u8>> = text.chars().map(byte_of).collect();
        bytes.unwrap_or_else(|| text.into_bytes())
    }
}

/// The tokenizer's normalisers, bounded, on the text without marks. The library drops what a
/// normaliser refuses, so the first refusal is kept here, and nothing is done after it.
struct Bounded<'a> {
    mark: Option<char>,
    steps: &'a Normalizers,
    budget: Budget,
    fail: OnceLock<Fail>,
}

impl Normalizer for Bounded<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        if self.fail.get().is_some() {
            return Ok(());
        }
        if let Some(mark) = self.mark {
            text.filter(|c| c != mark);
        }
        if let Err(fail) = self.steps.run(text, &self.budget) {
            let _ = self.fail.set(fail);
        }
        Ok(())
    }
}
