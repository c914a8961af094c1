// Which files a name stands for, as users of WebDataset write it: "train-{000..146}.tar", "{train,val}-{0..9}.tar", or
// a list, of shards or of images (folder.h): a text with a name on each line ("#" begins a remark), or the JSON index
// of wids, {"shardlist": [{"url": ...}]}. Names in a list count from where the list lies. Of this machine or behind
// HTTP alike: there, bytes that a URL may not have are escaped in names of a text, "%" among them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/prepare/data_file.h"

namespace lockstep::prepare {

// In the order in which a shell expands them; a path without braces, or with some that have neither ".." nor a comma
// in them, is itself. An error if there are very many.
absl::StatusOr<std::vector<std::string>> ExpandBraces(const std::string& path);

// The names in a list that lies at `path`, .json or a text, which is a path or a URL. One that comes twice is an error.
absl::StatusOr<std::vector<std::string>> ParseShardList(const std::string& path, const std::string& text);

// The first of the paths that comes a second time, and where it came before: by number, from 0. A shard of this machine
// also by another way, such as over a link.
struct Repeated {
  size_t first = 0, second = 0;
};
std::optional<Repeated> FindRepeated(const std::vector<std::string>& paths);

// Absolute, and without "." on its way; ".." stays, for behind a link it leads elsewhere than it reads. A URL is
// itself.
std::string Located(const std::string& path);
// Where what lies at the path, or the URL, lies: located, with a "/" at its end.
std::string FolderOf(const std::string& path);
// What comes before the first braces that ExpandBraces expands.
std::string BeforeBraces(const std::string& path);

bool IsShardList(
    const std::string& path);  // .txt, .json, or a URL that ends with "/", where index.json or shards.txt is
absl::StatusOr<std::vector<std::string>> ReadShardList(Files& files, const std::string& path);

}  // namespace lockstep::prepare
