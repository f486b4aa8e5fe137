// SPDX-License-Identifier: Apache-2.0
#include "weir_info/elf_file.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <optional>

namespace weir::info {
namespace {

// Far above what any linker writes.
constexpr uint64_t kHeadersMax = 4096;

// Reads structures at any offset, each checked against the end of the file.
class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  std::optional<T> at(uint64_t offset) const {
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) return std::nullopt;
    T value;
    memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }
  // Up to the next zero byte, which must lie in the file.
  std::optional<std::string> text(uint64_t offset) const {
    if (offset >= bytes_.size()) return std::nullopt;
    const size_t end = bytes_.find('\0', offset);
    if (end == std::string_view::npos) return std::nullopt;
    return std::string(bytes_.substr(offset, end - offset));
  }

 private:
  std::string_view bytes_;
};

class Parser {
 public:
  Parser(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  Result<ElfFile> parse() {
    const auto header = bytes_.at<Elf64_Ehdr>(0);
    if (!header || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0)
      return wrong("is not an ELF file");
    if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB) {
      return wrong("is not of a 64-bit little-endian processor");
    }
    if (header->e_phnum > kHeadersMax || header->e_shnum > kHeadersMax) return wrong("is damaged");
    for (uint64_t i = 0; i < header->e_phnum; ++i) {
      const auto segment = bytes_.at<Elf64_Phdr>(header->e_phoff + i * sizeof(Elf64_Phdr));
      if (!segment) return wrong("is damaged: its program headers are cut short");
      if (segment->p_type != PT_INTERP) continue;
      const auto text = bytes_.text(segment->p_offset);
      if (!text) return wrong("is damaged: the name of its loader is cut short");
      file_.interpreter = *text;
    }
    // A library without section headers still runs; only they give its symbols, so damaged ones are
    // an error.
    for (uint64_t i = 0; i < header->e_shnum; ++i) {
      const auto section = section_at(*header, i);
      if (!section) return wrong("is damaged: its section headers are cut short");
      if (section->sh_type != SHT_DYNAMIC && section->sh_type != SHT_DYNSYM) continue;
      const auto strings = section_at(*header, section->sh_link);
      if (!strings) return wrong("is damaged: a section's strings are missing");
      const bool read = section->sh_type == SHT_DYNAMIC ? read_dynamic(*section, *strings)
                                                        : read_symbols(*section, *strings);
      if (!read) return wrong("is damaged: its dynamic section or symbols are cut short");
    }
    return std::move(file_);
  }

 private:
  Status wrong(const char* what) const {
    return invalid_argument(fmt::format("{} {}", name_, what));
  }

  std::optional<Elf64_Shdr> section_at(const Elf64_Ehdr& header, uint64_t index) const {
    if (index >= header.e_shnum) return std::nullopt;
    return bytes_.at<Elf64_Shdr>(header.e_shoff + index * sizeof(Elf64_Shdr));
  }

  bool read_dynamic(const Elf64_Shdr& section, const Elf64_Shdr& strings) {
    for (uint64_t at = 0; at + sizeof(Elf64_Dyn) <= section.sh_size; at += sizeof(Elf64_Dyn)) {
      const auto entry = bytes_.at<Elf64_Dyn>(section.sh_offset + at);
      if (!entry) return false;
      if (entry->d_tag == DT_NULL) break;
      if (entry->d_tag != DT_NEEDED && entry->d_tag != DT_SONAME && entry->d_tag != DT_RPATH &&
          entry->d_tag != DT_RUNPATH) {
        continue;
      }
      const auto text = bytes_.text(strings.sh_offset + entry->d_un.d_val);
      if (!text) return false;
      if (entry->d_tag == DT_NEEDED) file_.needed.push_back(*text);
      if (entry->d_tag == DT_SONAME) file_.soname = *text;
      if (entry->d_tag == DT_RPATH) file_.rpath = *text;
      if (entry->d_tag == DT_RUNPATH) file_.runpath = *text;
    }
    return true;
  }

  bool read_symbols(const Elf64_Shdr& section, const Elf64_Shdr& strings) {
    for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= section.sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = bytes_.at<Elf64_Sym>(section.sh_offset + at);
      if (!symbol) return false;
      if (symbol->st_name == 0) continue;
      const auto text = bytes_.text(strings.sh_offset + symbol->st_name);
      if (!text) return false;
      if (symbol->st_shndx == SHN_UNDEF) {
        file_.imported.insert(*text);
      } else if (ELF64_ST_BIND(symbol->st_info) != STB_LOCAL) {
        file_.exported.insert(*text);
      }
    }
    return true;
  }

  const Bytes bytes_;
  const std::string& name_;
  ElfFile file_;
};

}  // namespace

Result<ElfFile> parse_elf_file(std::string_view bytes, const std::string& name) {
  return Parser(bytes, name).parse();
}

Result<ElfFile> read_elf_file(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return system_error("open " + path);
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0) {
    close(descriptor);
    return invalid_argument(path + " is not a file, or is empty");
  }
  // Mapped, since frameworks have libraries of gigabytes.
  const auto size = static_cast<size_t>(status.st_size);
  void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  close(descriptor);
  if (memory == MAP_FAILED) return system_error("mmap " + path);
  auto file = parse_elf_file({static_cast<const char*>(memory), size}, path);
  munmap(memory, size);
  return file;
}

}  // namespace weir::info
