// SPDX-License-Identifier: Apache-2.0
#include "core/topo/xml_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace weir::topo {
namespace {

// A value as shown to a user, without control characters and of limited length.
std::string shown(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 60)) {
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  return text.size() > 60 ? out + "…" : out;
}

}  // namespace

Result<std::unique_ptr<XmlReader>> XmlReader::load(std::string_view text, std::string_view name,
                                                   const XmlLimits& limits) {
  const auto fail = [&](const std::string& reason) {
    return invalid_argument(fmt::format("{}: {}", name, reason));
  };
  if (text.empty()) return fail("the file is empty");
  if (text.size() > limits.bytes_max) {
    return fail(fmt::format("{} bytes are more than the limit of {} for a topology file",
                            text.size(), limits.bytes_max));
  }
  if (text.find('\0') != std::string_view::npos) return fail("a binary file, not XML");
  // Limits what the parser can allocate.
  if (static_cast<size_t>(std::count(text.begin(), text.end(), '<')) >
      2 * limits.element_count_max) {
    return fail(fmt::format("more than {} elements", limits.element_count_max));
  }
  if (static_cast<size_t>(std::count(text.begin(), text.end(), '=')) > limits.attribute_count_max) {
    return fail(fmt::format("more than {} attributes", limits.attribute_count_max));
  }

  std::unique_ptr<XmlReader> reader(new XmlReader);
  reader->name_ = name;
  reader->line_starts_.push_back(0);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') reader->line_starts_.push_back(i + 1);
  }
  const pugi::xml_parse_result parsed = reader->document_.load_buffer(
      text.data(), text.size(), pugi::parse_default, pugi::encoding_utf8);
  if (!parsed) {
    std::string reason = parsed.description();
    if (parsed.status == pugi::status_no_document_element) reason = "there is no XML element";
    if (parsed.status == pugi::status_end_element_mismatch) {
      const size_t rest = std::min(static_cast<size_t>(parsed.offset), text.size());
      reason = text.find_first_not_of(" \t\r\n", rest) == std::string_view::npos
                   ? "the file ends before all elements are closed (is it cut off?)"
                   : "an end tag does not match its start tag";
    }
    const size_t offset = std::min(static_cast<size_t>(parsed.offset), text.size() - 1);
    return invalid_argument(fmt::format("{}:{}: {}", name, reader->line_at(offset), reason));
  }
  WEIR_RETURN_IF_ERROR(reader->check(limits));
  return reader;
}

Status XmlReader::check(const XmlLimits& limits) const {
  for (const pugi::xml_node node : document_.children()) {
    if (node.type() == pugi::node_element && node != root()) {
      return error(node, fmt::format("a second root element <{}>", shown(node.name())));
    }
  }
  size_t depth = 1;
  for (pugi::xml_node node = root(); node;) {
    std::vector<std::string_view> names;
    for (const pugi::xml_attribute attribute : node.attributes()) names.push_back(attribute.name());
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end()) {
      return error(
          node, fmt::format("<{}> has the attribute {} twice", shown(node.name()), shown(*twice)));
    }
    if (node.first_child()) {
      node = node.first_child();
      if (++depth > limits.depth_max) {
        return error(node, fmt::format("elements are nested more than {} deep", limits.depth_max));
      }
      continue;
    }
    while (node && node != root() && !node.next_sibling()) {
      node = node.parent();
      --depth;
    }
    node = !node || node == root() ? pugi::xml_node() : node.next_sibling();
  }
  return Status();
}

size_t XmlReader::line_at(size_t offset) const {
  return static_cast<size_t>(std::upper_bound(line_starts_.begin(), line_starts_.end(), offset) -
                             line_starts_.begin());
}

size_t XmlReader::line(pugi::xml_node element) const {
  const ptrdiff_t offset = element.offset_debug();
  return offset < 0 ? 0 : line_at(static_cast<size_t>(offset));
}

std::string XmlReader::where(pugi::xml_node element) const {
  return fmt::format("{}:{}", name_, line(element));
}

Status XmlReader::error(pugi::xml_node element, std::string_view text) const {
  return invalid_argument(fmt::format("{}: {}", where(element), text));
}

std::optional<std::string_view> XmlReader::text(pugi::xml_node element, const char* attribute) {
  const pugi::xml_attribute found = element.attribute(attribute);
  if (!found) return std::nullopt;
  return std::string_view(found.value());
}

Result<std::optional<int64_t>> XmlReader::integer(pugi::xml_node element, const char* attribute,
                                                  int64_t min, int64_t max) const {
  const std::optional<std::string_view> found = text(element, attribute);
  if (!found || found->empty()) return std::optional<int64_t>();
  std::string_view digits = *found;
  const bool hex = digits.starts_with("0x") || digits.starts_with("0X");
  if (hex) digits.remove_prefix(2);
  int64_t value = 0;
  const char* last = digits.data() + digits.size();
  const auto [end, failure] = std::from_chars(digits.data(), last, value, hex ? 16 : 10);
  if (failure == std::errc::invalid_argument || end != last) {
    return error(element, fmt::format("{}=\"{}\" of <{}> is not a whole number", attribute,
                                      shown(*found), shown(element.name())));
  }
  if (failure != std::errc() || value < min || value > max) {
    return error(element, fmt::format("{}=\"{}\" of <{}> is not between {} and {}", attribute,
                                      shown(*found), shown(element.name()), min, max));
  }
  return std::optional<int64_t>(value);
}

Result<std::optional<double>> XmlReader::number(pugi::xml_node element, const char* attribute,
                                                double min, double max) const {
  const std::optional<std::string_view> found = text(element, attribute);
  if (!found || found->empty()) return std::optional<double>();
  double value = 0;
  const char* last = found->data() + found->size();
  const auto [end, failure] = std::from_chars(found->data(), last, value);
  if (failure == std::errc::invalid_argument || end != last || std::isnan(value)) {
    return error(element, fmt::format("{}=\"{}\" of <{}> is not a number", attribute, shown(*found),
                                      shown(element.name())));
  }
  if (failure != std::errc() || value < min || value > max) {
    return error(element, fmt::format("{}=\"{}\" of <{}> is not between {:g} and {:g}", attribute,
                                      shown(*found), shown(element.name()), min, max));
  }
  return std::optional<double>(value);
}

std::vector<std::string> XmlReader::unknown_attributes(
    pugi::xml_node element, std::initializer_list<std::string_view> known) {
  std::vector<std::string> unknown;
  for (const pugi::xml_attribute attribute : element.attributes()) {
    const std::string_view name = attribute.name();
    if (std::find(known.begin(), known.end(), name) == known.end()) unknown.push_back(shown(name));
  }
  return unknown;
}

}  // namespace weir::topo
