// Counts the 32-byte sectors that warps move, by the place in the kernel.
//
// The n-th access of each lane of a warp at one place counts as one access of the warp. That is
// what hardware does where lanes go the same way; where they do not, it moves no fewer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace simt {

// What was counted at one place: a file and line, read or written.
struct Count {
    const char* file;
    uint32_t line;
    bool write;
    uint64_t accesses; // of warps
    uint64_t sectors;  // that they touch
    uint64_t ideal;    // the fewest that could hold the bytes that each touches
};

class Sectors {
    static constexpr uint64_t sector_bytes = 32;

    struct Access {
        uint64_t group; // the warp, and how often it came here before
        uintptr_t address;
        size_t bytes;
    };

    struct Place {
        Count count;
        std::vector<uint32_t> visits; // by each thread of the block
        std::vector<Access> accesses; // by the block
    };

    std::vector<Place> places;

    Place& place(const char* file, uint32_t line, bool write, uint32_t threads) {
        for (Place& place : places) {
            const Count& count = place.count;
            if (count.line == line && count.write == write && strcmp(count.file, file) == 0) return place;
        }
        places.push_back({{file, line, write, 0, 0, 0}, std::vector<uint32_t>(threads), {}});
        return places.back();
    }

    static void add(Count& count, const Access* begin, const Access* end) {
        uint64_t sectors = 0;
        uint64_t bytes = 0;
        uintptr_t counted_sectors = 0; // up to this one
        uintptr_t counted_bytes = 0;   // up to this one
        for (const Access* access = begin; access != end; ++access) {
            const uintptr_t first = std::max(access->address, counted_bytes);
            const uintptr_t last = access->address + access->bytes;
            if (first >= last) continue;
            bytes += last - first;
            counted_bytes = last;
            const uintptr_t first_sector = std::max(first / sector_bytes, counted_sectors);
            const uintptr_t last_sector = (last + sector_bytes - 1) / sector_bytes;
            if (first_sector >= last_sector) continue;
            sectors += last_sector - first_sector;
            counted_sectors = last_sector;
        }
        ++count.accesses;
        count.sectors += sectors;
        count.ideal += (bytes + sector_bytes - 1) / sector_bytes;
    }

public:
    void clear() { places.clear(); }

    void access(uint32_t thread, uint32_t threads, const void* address, size_t bytes, bool write, const char* file,
                uint32_t line) {
        Place& at = place(file, line, write, threads);
        const uint64_t group = static_cast<uint64_t>(thread / 32) << 32 | at.visits[thread]++;
        at.accesses.push_back({group, reinterpret_cast<uintptr_t>(address), bytes});
    }

    void end_block() {
        for (Place& place : places) {
            std::vector<Access>& accesses = place.accesses;
            std::sort(accesses.begin(), accesses.end(), [](const Access& a, const Access& b) {
                return a.group != b.group ? a.group < b.group : a.address < b.address;
            });
            for (size_t begin = 0, end; begin < accesses.size(); begin = end) {
                end = begin;
                while (end < accesses.size() && accesses[end].group == accesses[begin].group) ++end;
                add(place.count, &accesses[begin], &accesses[begin] + (end - begin));
            }
            accesses.clear();
            std::fill(place.visits.begin(), place.visits.end(), 0);
        }
    }

    // By file and line.
    std::vector<Count> counts() const {
        std::vector<Count> counts;
        for (const Place& place : places) counts.push_back(place.count);
        std::sort(counts.begin(), counts.end(), [](const Count& a, const Count& b) {
            const int files = strcmp(a.file, b.file);
            if (files != 0) return files < 0;
            return a.line != b.line ? a.line < b.line : a.write < b.write;
        });
        return counts;
    }
};

} // namespace simt
