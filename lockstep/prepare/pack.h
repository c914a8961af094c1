// Documents of a token file in rows of one length. A row has room for `tokens` + 1 tokens, as a window has
// (records.h), so that a model gets `tokens` pairs of a token and the next. Pieces of documents lie in it one behind
// the other; a document that is too long for a row is cut into pieces that share one token. So each pair of neighbours
// of a document lies in exactly one row.
//   kBestFit: documents are not cut unless they are too long; longest first, each into the row with least room that it
//     fits into (Ding et al., "Fewer Truncations Improve Language Modeling", ICML 2024).
//   kChunk: documents in their order, cut where a row is full; all rows but the last are full but for one place at
//   most.
// Which documents share a row is decided once, at opening; an epoch shuffles rows. Memory: 8 bytes for each document,
// 16 for each piece, 8 for each row. Time: pieces log pieces.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/prepare/data_file.h"
#include "lockstep/prepare/source.h"

namespace lockstep::prepare {

// Tokens [begin, begin + count) of the file.
struct Piece {
  uint64_t begin = 0, count = 0;
  bool operator==(const Piece&) const = default;
};

// Row r has pieces [rows[r], rows[r + 1]).
struct Packing {
  std::vector<Piece> pieces;
  std::vector<uint64_t> rows{0};
  uint64_t size() const { return rows.size() - 1; }
  std::span<const Piece> Row(uint64_t row) const {
    return std::span(pieces).subspan(rows[row], rows[row + 1] - rows[row]);
  }
};

// `ends`: of the documents, ascending: the first token behind each; none is empty. `capacity`: of a row, 2 at least.
Packing PackBestFit(std::span<const uint64_t> ends, uint64_t capacity);
Packing PackChunks(std::span<const uint64_t> ends, uint64_t capacity);

// Ends of documents from an array of whole numbers as users have it: where each begins, or ends; 0 and the number of
// tokens may be among them or not.
absl::StatusOr<std::vector<uint64_t>> EndsFromOffsets(std::span<const int64_t> offsets, uint64_t tokens);

// Items are rows of int64, shape (3, tokens + 1): the tokens, the number of the piece that each belongs to, from 1 on
// (0: nothing, token 0), and its place in it.
absl::StatusOr<std::unique_ptr<Source>> OpenPacked(Files& files, const SourceSpec& spec);

}  // namespace lockstep::prepare
