// DuckDB's C library, for Parquet files. It is 70 MB, so it is loaded when the first file is read, not before.
//
//   LS_ASSIGN_OR_RETURN(DuckDb database, DuckDb::Open());
//   LS_RETURN_IF_ERROR(database.Query("SELECT step FROM read_parquet('a.parquet')", [](const DuckDb::Chunk& chunk) {
//     for (size_t row = 0; row < chunk.rows(); ++row) Use(chunk.Column<int64_t>(0)[row]);
//     return absl::OkStatus();
//   }));
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/status.h"

namespace lockstep::trace {

class DuckDb {
 public:
  // Some rows of a result, column by column.
  class Chunk {
   public:
    // A text of up to 12 bytes stands in place; a longer one has its address behind 4 bytes of it.
    class StoredText {
     public:
      std::string_view view() const {
        return {length_ <= kInPlace ? begin_ : address_, length_};
      }  // as long as the chunk

     private:
      static constexpr uint32_t kInPlace = 12;
      uint32_t length_;
      char begin_[4];
      const char* address_;
    };
    static_assert(sizeof(StoredText) == 16);
    explicit Chunk(void* handle) : handle_(handle) {}
    size_t rows() const;
    // Requires the type that the query gives the column.
    template <typename T>
    const T* Column(size_t column) const {
      return static_cast<const T*>(Data(column));
    }
    std::string_view Text(size_t column, size_t row) const { return Column<StoredText>(column)[row].view(); }
    std::optional<size_t> FirstNull(size_t column) const;

   private:
    const void* Data(size_t column) const;
    void* handle_;
  };
  using Use = std::function<absl::Status(const Chunk&)>;

  // A database in memory, which loads no extension from anywhere. kUnavailable: no library, with what was tried.
  static absl::StatusOr<DuckDb> Open();
  DuckDb(DuckDb&& other) noexcept;
  DuckDb& operator=(DuckDb&&) = delete;
  ~DuckDb();

  // Hands out the rows in order, chunk by chunk, without holding all. Works in the calling thread alone, and may be
  // called from several at once. kInvalidArgument: DuckDB's own message.
  absl::Status Query(const std::string& sql, const Use& use) const;

 private:
  DuckDb() = default;

  void* database_ = nullptr;
};

// 'text', as SQL has it.
std::string SqlText(std::string_view text);

}  // namespace lockstep::trace
