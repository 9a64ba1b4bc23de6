//! What a tokenizer.json may hold, looked at before the library reads it: its loader runs the
//! normalizers on the added tokens, and sizes a table by a number of the file.

use crate::budget::Budget;
use crate::fail::{guarded, Fail, Result};
use crate::steps::{charsmap_growth, Normalizers, STEPS_MAX};
use serde::Deserialize;
use serde_json::Value as Json;
use tokenizers::models::ModelWrapper;
use tokenizers::tokenizer::{AddedToken, NormalizedString};
use tokenizers::NormalizerWrapper;

/// Bytes of a token. Searches take time in proportion to the longest of these two kinds.
const TOKEN_BYTES_MAX: usize = 64 << 10;
const ADDED_BYTES_MAX: usize = 4096;
const UNIGRAM_BYTES_MAX: usize = 1024;

/// Bytes that BPE and WordPiece put before or after each letter.
const AFFIX_BYTES_MAX: usize = 256;

/// Letters of a word that WordPiece cuts (100 is usual): the time grows with the cube.
const WORD_LETTERS_MAX: usize = 1000;

/// Copies of the text, and ids, that a template of the post-processor may put.
const SEQUENCES_MAX: usize = 4;
const TEMPLATE_IDS_MAX: usize = 4096;

const TYPES_SHOWN_MAX: usize = 16;

/// The parts of the file that are small; the model is left to the library.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Json,
    #[serde(default)]
    post_processor: Json,
    #[serde(default)]
    pre_tokenizer: Json,
    #[serde(default)]
    decoder: Json,
}

fn types_in(part: &Json, types: &mut Vec<String>) {
    match part {
        Json::Object(members) => {
            types.extend(members.get("type").and_then(Json::as_str).map(String::from));
            members.values().for_each(|inner| types_in(inner, types));
        }
        Json::Array(items) => items.iter().for_each(|inner| types_in(inner, types)),
        _ => (),
    }
}

/// The library names no type that it does not know: this adds those of the file to its refusal.
pub fn with_types(fail: Fail, json: &[u8]) -> Fail {
    let Ok(parts) = serde_json::from_slice::<Parts>(json) else { return fail };
    if !fail.text.contains("untagged enum") {
        return fail;
    }
    let listed = [
        ("normalizer", &parts.normalizer),
        ("pre_tokenizer", &parts.pre_tokenizer),
        ("post_processor", &parts.post_processor),
        ("decoder", &parts.decoder),
    ]
    .map(|(name, part)| {
        let mut types = Vec::new();
        types_in(part, &mut types);
        types.truncate(TYPES_SHOWN_MAX);
        format!("{name} {}", if types.is_empty() { "none".into() } else { types.join(" ") })
    });
    let text =
        format!("{}; expected types that tokenizers knows, found {}", fail.text, listed.join(", "));
    Fail { text, ..fail }
}

fn over(field: &str, found: usize, what: &str, limit: usize) -> Fail {
    Fail::corrupt(format!("{field}: {found} {what}, expected at most {limit}"))
}

pub fn check_file(json: &[u8]) -> Result<()> {
    let parts: Parts = serde_json::from_slice(json).map_err(|e| Fail::corrupt(e.to_string()))?;
    check_charsmaps(&parts.normalizer)?;
    check_templates(&parts.post_processor, &mut 0)?;
    let normalizer: Option<NormalizerWrapper> = guarded("normalizer", || {
        serde_json::from_value(parts.normalizer)
            .map_err(|e| Fail::corrupt(format!("normalizer: {e}")))
    })?;
    let normalizers = Normalizers::new(normalizer.as_ref())?;
    for token in &parts.added_tokens {
        let bytes = token.content.len();
        if bytes > ADDED_BYTES_MAX {
            return Err(over("added_tokens: a token", bytes, "bytes", ADDED_BYTES_MAX));
        }
        if token.normalized {
            let mut text = NormalizedString::from(token.content.as_str());
            normalizers.run(&mut text, &Budget::new(bytes)).map_err(|fail| Fail {
                text: format!("added_tokens: {:?}: {}", token.content, fail.text),
                ..fail
            })?;
            let bytes = text.get().len();
            if bytes > ADDED_BYTES_MAX {
                let field = "added_tokens: a token, normalized";
                return Err(over(field, bytes, "bytes", ADDED_BYTES_MAX));
            }
        }
    }
    Ok(())
}

fn check_charsmaps(normalizer: &Json) -> Result<()> {
    if let Some(map) = normalizer.get("precompiled_charsmap").and_then(Json::as_str) {
        charsmap_growth(map)?;
    }
    let inner = normalizer.get("normalizers").and_then(Json::as_array);
    inner.into_iter().flatten().try_for_each(check_charsmaps)
}

fn check_templates(processor: &Json, step_count: &mut usize) -> Result<()> {
    *step_count += 1;
    if *step_count > STEPS_MAX {
        return Err(over("post_processor.processors", *step_count, "steps", STEPS_MAX));
    }
    for name in ["single", "pair"] {
        let pieces = processor.get(name).and_then(Json::as_array);
        let pieces = || pieces.into_iter().flatten();
        let sequence_count = pieces().filter(|p| p.get("Sequence").is_some()).count();
        let field = format!("post_processor.{name}");
        if sequence_count > SEQUENCES_MAX {
            return Err(over(&field, sequence_count, "times the text", SEQUENCES_MAX));
        }
        let id_count = |piece: &Json| {
            let name = piece.get("SpecialToken")?.get("id")?.as_str()?;
            Some(processor.get("special_tokens")?.get(name)?.get("ids")?.as_array()?.len())
        };
        let id_count = pieces().filter_map(id_count).fold(0, usize::saturating_add);
        if id_count > TEMPLATE_IDS_MAX {
            return Err(over(&field, id_count, "special ids", TEMPLATE_IDS_MAX));
        }
    }
    let inner = processor.get("processors").and_then(Json::as_array);
    inner.into_iter().flatten().try_for_each(|p| check_templates(p, step_count))
}

pub fn check_model(model: &ModelWrapper) -> Result<()> {
    let affix = |field: &str, text: &str| match text.len() > AFFIX_BYTES_MAX {
        true => Err(over(field, text.len(), "bytes", AFFIX_BYTES_MAX)),
        false => Ok(()),
    };
    match model {
        ModelWrapper::BPE(bpe) => {
            let prefix = bpe.continuing_subword_prefix.as_deref().unwrap_or("");
            affix("model.continuing_subword_prefix", prefix)?;
            affix("model.end_of_word_suffix", bpe.end_of_word_suffix.as_deref().unwrap_or(""))
        }
        ModelWrapper::WordPiece(words) => {
            affix("model.continuing_subword_prefix", &words.continuing_subword_prefix)?;
            let letters = words.max_input_chars_per_word;
            match letters > WORD_LETTERS_MAX {
                true => Err(over(
                    "model.max_input_chars_per_word",
                    letters,
                    "letters",
                    WORD_LETTERS_MAX,
                )),
                false => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// `longest`: bytes of the longest token of the vocabulary.
pub fn check_longest(model: &ModelWrapper, longest: usize) -> Result<()> {
    let limit = match model {
        ModelWrapper::Unigram(_) => UNIGRAM_BYTES_MAX,
        _ => TOKEN_BYTES_MAX,
    };
    match longest > limit {
        true => Err(over("model.vocab: the longest token", longest, "bytes", limit)),
        false => Ok(()),
    }
}
