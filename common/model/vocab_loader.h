// Reads the vocabulary and the chat template out of a GGUF's tokenizer.* metadata.
#pragma once

#include "common/base/result.h"
#include "common/model/vocab_data.h"

namespace akv::model {

class GgufFile;

// `vocab` is the row count of the embedding. Errors name the key: tokens missing or of another
// count than `vocab`, types or scores of another count than the tokens, ids outside the vocabulary.
// What the pieces and merges mean is Tokenizer::create's to check.
Result<VocabData> load_vocab(const GgufFile& file, int vocab);

}  // namespace akv::model
