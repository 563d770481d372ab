# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_zarrs_cuda_global_optspecs
    string join \n json threads= memory= backend= devices= h/help V/version
end

function __fish_zarrs_cuda_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_zarrs_cuda_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_zarrs_cuda_using_subcommand
    set -l cmd (__fish_zarrs_cuda_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -l threads -d 'Threads that compute [default: as many as there are processors]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -l memory -d 'Memory for buffers, as 512MiB or 4GiB [default: a quarter of this machine\'s]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -l backend -d 'Where shards are encoded and decoded [default: on the processor, unless --devices or ZARRS_CUDA_DEVICES names a GPU]' -r -f -a "auto\t'On a GPU where one helps'
host\t'On the processor'
cuda\t'On a GPU, or fail'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -l devices -d 'The GPUs to use, by number, as 0 or 0,1; or all' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -l json -d 'Print one JSON object instead of text'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -s V -l version -d 'Print version'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -f -a "demo" -d 'Re-encode a small MRI volume into a folder, verify it, and look at it'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -f -a "reencode" -d 'Re-encode any Zarr v2 or v3 array as a sharded v3 array'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -f -a "reshard" -d 'Move subchunks between chunks and shards without decoding them'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -f -a "inspect" -d 'Show what is in the shards of an array, and where'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -f -a "explain" -d 'Say what happens to the shards of an array, where, and why'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -f -a "verify" -d 'Find damaged shards and subchunks, or compare two arrays or groups bit for bit'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -f -a "recover" -d 'Repair shards whose last update was interrupted'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -f -a "compact" -d 'Store shards again without their unused bytes'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -f -a "consolidate" -d 'Pack subchunks that were written one by one into the shards of an array'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -f -a "stream" -d 'Append frames of raw bytes to a sharded array while they arrive'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -f -a "pyramid" -d 'Make the smaller levels of an image whose level 0 is there'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -f -a "plan" -d 'Propose shards and subchunks for how an array will be written and read'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -f -a "status" -d 'Tell which parts of an output are made, which --part makes'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -f -a "doctor" -d 'Say what this machine has, which chains would run where, and what a file system promises'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -f -a "bench" -d 'Compare this library with zarrs on this machine, as a table and as an HTML page'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -f -a "completions" -d 'Print completions for a shell'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -f -a "man" -d 'Write a manual page for each subcommand into a folder'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand demo" -l threads -d 'Threads that compute [default: as many as there are processors]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand demo" -l memory -d 'Memory for buffers, as 512MiB or 4GiB [default: a quarter of this machine\'s]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand demo" -l backend -d 'Where shards are encoded and decoded [default: on the processor, unless --devices or ZARRS_CUDA_DEVICES names a GPU]' -r -f -a "auto\t'On a GPU where one helps'
host\t'On the processor'
cuda\t'On a GPU, or fail'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand demo" -l devices -d 'The GPUs to use, by number, as 0 or 0,1; or all' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand demo" -l json -d 'Print one JSON object instead of text'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand demo" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l shard -d 'The shape of a shard, in elements [default: chosen by --shard-size]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l subchunk -d 'The shape of a subchunk, in elements [default: nearly cubic, by --subchunk-size]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l shard-size -d 'About how large a shard is, decoded' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l subchunk-size -d 'About how large a subchunk is, decoded' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l codec -d 'How subchunks are compressed: none | crc32c | zstd:LEVEL | gzip:LEVEL | blosc-NAME:LEVEL:SHUFFLE, with NAME one of lz4, lz4hc, zstd, zlib, snappy, blosclz, and SHUFFLE one of shuffle, bitshuffle, noshuffle' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l index -d 'Where a shard keeps its index' -r -f -a "start\t''
end\t''"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l include -d 'With --recursive: only arrays whose path matches, as temperature or surface/*; `*` is any characters but `/`, and `**` any. It may be given several times' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l shape-for -d 'With --recursive: the shape of shards, and of subchunks, of arrays whose path matches, as \'t2m=256,320,320/64,32,32\'. Of several, the first that matches counts' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l part -d 'Make one part of OUT, as 3/16. Other processes, on any machines, make the others; the last one makes OUT readable. If a machine dies, make its part again: `zarrs-cuda status OUT` lists the parts that are missing' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l prepare -d 'Plan N parts, and make none: for stores that cannot create an object only if there is none, and to replace OUT (with --overwrite)' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l threads -d 'Threads that compute [default: as many as there are processors]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l memory -d 'Memory for buffers, as 512MiB or 4GiB [default: a quarter of this machine\'s]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l backend -d 'Where shards are encoded and decoded [default: on the processor, unless --devices or ZARRS_CUDA_DEVICES names a GPU]' -r -f -a "auto\t'On a GPU where one helps'
host\t'On the processor'
cuda\t'On a GPU, or fail'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l devices -d 'The GPUs to use, by number, as 0 or 0,1; or all' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l recursive -d 'Re-encode every array of the group IN; shapes are for arrays of as many dimensions'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l keep-chunks -d 'Make subchunks of the shape of IN\'s chunks, or of its subchunks if IN has shards'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l consolidate-metadata -d 'With --recursive: consolidate the metadata of OUT also if IN has no consolidated metadata'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l keep-going -d 'With --recursive: leave out arrays that cannot be done, and do the others. When the cause is gone, --resume adds them; with both, a run goes on, and leaves out what still cannot be done. Not with --overwrite, which deletes all arrays of OUT first'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l explain -d 'Say what happens to a shard, and why'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l verify -d 'Read both arrays again with zarrs\' own codecs, and compare every bit. No other implementation decodes IN'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l allow-empty -d 'Re-encode IN also if none of its chunks is stored: every element is the fill value'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l overwrite -d 'Replace the arrays that are in OUT. An OUT whose parts are not all made is replaced by --prepare alone'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l resume -d 'Go on with an interrupted run of the same command: what is whole in OUT is kept. If OUT was made in parts and is complete: make shards again that are missing or damaged'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l dry-run -d 'Only say what would be done: the shards, the bytes, the reads of IN and the memory, of each part, and what cannot be re-encoded. With --resume also the shards that are kept'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -l json -d 'Print one JSON object instead of text'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reencode" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reshard" -l shard -d 'Shards of this shape in elements, a whole multiple of a subchunk' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reshard" -l index -d 'Where a shard keeps its index [default: as in IN, or at the end]' -r -f -a "start\t''
end\t''"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reshard" -l chunk-keys -d 'How the keys of chunks or shards are written [default: as in IN]' -r -f -a "default/\t'Keys such as c/0/1'
default.\t'Keys such as c.0.1'
v2/\t'Keys such as 0/1'
v2.\t'Keys such as 0.1'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reshard" -l part -d 'Make one part of OUT, as 3/16. Other processes, on any machines, make the others; the last one makes OUT readable. `zarrs-cuda status OUT` lists the parts that are missing' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reshard" -l prepare -d 'Plan N parts, and make none: for file systems without hard links' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reshard" -l threads -d 'Threads that compute [default: as many as there are processors]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reshard" -l memory -d 'Memory for buffers, as 512MiB or 4GiB [default: a quarter of this machine\'s]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reshard" -l backend -d 'Where shards are encoded and decoded [default: on the processor, unless --devices or ZARRS_CUDA_DEVICES names a GPU]' -r -f -a "auto\t'On a GPU where one helps'
host\t'On the processor'
cuda\t'On a GPU, or fail'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reshard" -l devices -d 'The GPUs to use, by number, as 0 or 0,1; or all' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reshard" -l chunks -d 'No shards: each subchunk becomes a chunk'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reshard" -l json -d 'Print one JSON object instead of text'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand reshard" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand inspect" -l html -d 'Write one HTML file about all shards, which needs no network' -r -F
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand inspect" -l axes -d 'The two axes of the map in the terminal: down and across, by number' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand inspect" -l threads -d 'Threads that compute [default: as many as there are processors]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand inspect" -l memory -d 'Memory for buffers, as 512MiB or 4GiB [default: a quarter of this machine\'s]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand inspect" -l backend -d 'Where shards are encoded and decoded [default: on the processor, unless --devices or ZARRS_CUDA_DEVICES names a GPU]' -r -f -a "auto\t'On a GPU where one helps'
host\t'On the processor'
cuda\t'On a GPU, or fail'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand inspect" -l devices -d 'The GPUs to use, by number, as 0 or 0,1; or all' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand inspect" -l all -d 'Read the index of every shard, not of 2,000 at most'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand inspect" -l summary -d 'Do not list the subchunks of SHARD'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand inspect" -l json -d 'Print one JSON object instead of text'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand inspect" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand explain" -l threads -d 'Threads that compute [default: as many as there are processors]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand explain" -l memory -d 'Memory for buffers, as 512MiB or 4GiB [default: a quarter of this machine\'s]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand explain" -l backend -d 'Where shards are encoded and decoded [default: on the processor, unless --devices or ZARRS_CUDA_DEVICES names a GPU]' -r -f -a "auto\t'On a GPU where one helps'
host\t'On the processor'
cuda\t'On a GPU, or fail'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand explain" -l devices -d 'The GPUs to use, by number, as 0 or 0,1; or all' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand explain" -l json -d 'Print one JSON object instead of text'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand explain" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand verify" -l part -d 'Only the part I of N of the shards, as 3/16: every Nth of the grid' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand verify" -l against -d 'Compare every element with this array, too, bit for bit' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand verify" -l threads -d 'Threads that compute [default: as many as there are processors]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand verify" -l memory -d 'Memory for buffers, as 512MiB or 4GiB [default: a quarter of this machine\'s]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand verify" -l backend -d 'Where shards are encoded and decoded [default: on the processor, unless --devices or ZARRS_CUDA_DEVICES names a GPU]' -r -f -a "auto\t'On a GPU where one helps'
host\t'On the processor'
cuda\t'On a GPU, or fail'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand verify" -l devices -d 'The GPUs to use, by number, as 0 or 0,1; or all' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand verify" -l recursive -d 'Verify every array of a group, and of the groups in it'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand verify" -l json -d 'Print one JSON object instead of text'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand verify" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand recover" -l part -d 'Only the part I of N of the shards, as 3/16: every Nth of the grid' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand recover" -l threads -d 'Threads that compute [default: as many as there are processors]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand recover" -l memory -d 'Memory for buffers, as 512MiB or 4GiB [default: a quarter of this machine\'s]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand recover" -l backend -d 'Where shards are encoded and decoded [default: on the processor, unless --devices or ZARRS_CUDA_DEVICES names a GPU]' -r -f -a "auto\t'On a GPU where one helps'
host\t'On the processor'
cuda\t'On a GPU, or fail'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand recover" -l devices -d 'The GPUs to use, by number, as 0 or 0,1; or all' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand recover" -l dry-run -d 'Only say what would be done'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand recover" -l json -d 'Print one JSON object instead of text'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand recover" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand compact" -l part -d 'Only the part I of N of the shards, as 3/16: every Nth of the grid' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand compact" -l unused -d 'How much of a shard has to be unused, as a fraction of its size' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand compact" -l threads -d 'Threads that compute [default: as many as there are processors]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand compact" -l memory -d 'Memory for buffers, as 512MiB or 4GiB [default: a quarter of this machine\'s]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand compact" -l backend -d 'Where shards are encoded and decoded [default: on the processor, unless --devices or ZARRS_CUDA_DEVICES names a GPU]' -r -f -a "auto\t'On a GPU where one helps'
host\t'On the processor'
cuda\t'On a GPU, or fail'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand compact" -l devices -d 'The GPUs to use, by number, as 0 or 0,1; or all' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand compact" -l dry-run -d 'Only say what would be done'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand compact" -l json -d 'Print one JSON object instead of text'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand compact" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand consolidate" -l part -d 'Only the part I of N of the shards, as 3/16: every Nth of the grid' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand consolidate" -l threads -d 'Threads that compute [default: as many as there are processors]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand consolidate" -l memory -d 'Memory for buffers, as 512MiB or 4GiB [default: a quarter of this machine\'s]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand consolidate" -l backend -d 'Where shards are encoded and decoded [default: on the processor, unless --devices or ZARRS_CUDA_DEVICES names a GPU]' -r -f -a "auto\t'On a GPU where one helps'
host\t'On the processor'
cuda\t'On a GPU, or fail'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand consolidate" -l devices -d 'The GPUs to use, by number, as 0 or 0,1; or all' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand consolidate" -l over-changed -d 'Pack shards, too, that another program has replaced since subchunks were stored beside them: the subchunks win'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand consolidate" -l dry-run -d 'Only say what would be done'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand consolidate" -l json -d 'Print one JSON object instead of text'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand consolidate" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand stream" -l frame-shape -d 'The shape of a frame, in elements; needed for a new array' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand stream" -l dtype -d 'The data type of elements, such as uint16; needed for a new array' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand stream" -l shard -d 'The shape of a shard, in elements [default: chosen by --shard-size]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand stream" -l subchunk -d 'The shape of a subchunk, in elements [default: nearly cubic, by --subchunk-size]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand stream" -l shard-size -d 'About how large a shard is, decoded' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand stream" -l subchunk-size -d 'About how large a subchunk is, decoded' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand stream" -l codec -d 'How subchunks are compressed: none | crc32c | zstd:LEVEL | gzip:LEVEL | blosc-NAME:LEVEL:SHUFFLE, with NAME one of lz4, lz4hc, zstd, zlib, snappy, blosclz, and SHUFFLE one of shuffle, bitshuffle, noshuffle [default: zstd:1]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand stream" -l frames -d 'Stop after N frames of the input' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand stream" -l threads -d 'Threads that compute [default: as many as there are processors]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand stream" -l memory -d 'Memory for buffers, as 512MiB or 4GiB [default: a quarter of this machine\'s]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand stream" -l backend -d 'Where shards are encoded and decoded [default: on the processor, unless --devices or ZARRS_CUDA_DEVICES names a GPU]' -r -f -a "auto\t'On a GPU where one helps'
host\t'On the processor'
cuda\t'On a GPU, or fail'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand stream" -l devices -d 'The GPUs to use, by number, as 0 or 0,1; or all' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand stream" -l skip-stored -d 'Discard as many frames from the input as the array has: go on after an interrupted run'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand stream" -l json -d 'Print one JSON object instead of text'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand stream" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand pyramid" -l levels -d 'How many levels there are, with level 0 [default: as the image says, or until a slice fits one subchunk]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand pyramid" -l reduction -d 'How elements become one of the level below [default: as the image says, or mode for labels, or mean]' -r -f -a "mean\t'The mean; of integers, rounded half to even'
minimum\t'The smallest'
maximum\t'The largest'
median\t'The middle one, or the mean of both in the middle'
mode\t'The most frequent, for labels'
decimate\t'The first'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand pyramid" -l axis -d 'An axis: NAME and, with commas between, any of type=, unit=, scale=, translation=, factor=. Factor 1 or 2 is how many elements become one: 2 for axes of space unless it is said. What is not said is as in the image\'s metadata, or usual for an axis of this name' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand pyramid" -l name -d 'The name of the image, for its metadata [default: the name that it has]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand pyramid" -l start -d 'Make the levels again from this slice of level 0 on: slice 0 is all' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand pyramid" -l part -d 'Only the part I of N, as 3/16, while other processes make the others. The last one makes the levels readable. `zarrs-cuda status GROUP` lists the parts that are missing' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand pyramid" -l prepare -d 'Plan N parts, and make none: for file systems without hard links' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand pyramid" -l threads -d 'Threads that compute [default: as many as there are processors]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand pyramid" -l memory -d 'Memory for buffers, as 512MiB or 4GiB [default: a quarter of this machine\'s]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand pyramid" -l backend -d 'Where shards are encoded and decoded [default: on the processor, unless --devices or ZARRS_CUDA_DEVICES names a GPU]' -r -f -a "auto\t'On a GPU where one helps'
host\t'On the processor'
cuda\t'On a GPU, or fail'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand pyramid" -l devices -d 'The GPUs to use, by number, as 0 or 0,1; or all' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand pyramid" -l allow-empty -d 'Make the levels also if no shard of level 0 is stored: every element is the fill value'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand pyramid" -l dry-run -d 'Only say which levels there would be, and how much memory that takes'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand pyramid" -l json -d 'Print one JSON object instead of text'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand pyramid" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand plan" -l shape -d 'The shape of the array, in elements' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand plan" -l dtype -d 'The data type of elements, such as uint16' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand plan" -l rate -d 'Slices along the first axis that arrive each second, if the array is streamed' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand plan" -l read -d 'How the array will mostly be read' -r -f -a "boxes\t'Boxes anywhere'
slices\t'Whole slices along the first axis'
lines\t'Lines along the first axis, such as time series of an element'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand plan" -l shard-size -d 'About how large a shard is, decoded' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand plan" -l subchunk-size -d 'About how large a subchunk is, decoded' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand plan" -l codec -d 'How subchunks are compressed: none | crc32c | zstd:LEVEL | gzip:LEVEL | blosc-NAME:LEVEL:SHUFFLE, with NAME one of lz4, lz4hc, zstd, zlib, snappy, blosclz, and SHUFFLE one of shuffle, bitshuffle, noshuffle' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand plan" -l threads -d 'Threads that compute [default: as many as there are processors]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand plan" -l memory -d 'Memory for buffers, as 512MiB or 4GiB [default: a quarter of this machine\'s]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand plan" -l backend -d 'Where shards are encoded and decoded [default: on the processor, unless --devices or ZARRS_CUDA_DEVICES names a GPU]' -r -f -a "auto\t'On a GPU where one helps'
host\t'On the processor'
cuda\t'On a GPU, or fail'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand plan" -l devices -d 'The GPUs to use, by number, as 0 or 0,1; or all' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand plan" -l json -d 'Print one JSON object instead of text'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand plan" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand status" -l threads -d 'Threads that compute [default: as many as there are processors]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand status" -l memory -d 'Memory for buffers, as 512MiB or 4GiB [default: a quarter of this machine\'s]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand status" -l backend -d 'Where shards are encoded and decoded [default: on the processor, unless --devices or ZARRS_CUDA_DEVICES names a GPU]' -r -f -a "auto\t'On a GPU where one helps'
host\t'On the processor'
cuda\t'On a GPU, or fail'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand status" -l devices -d 'The GPUs to use, by number, as 0 or 0,1; or all' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand status" -l finish -d 'Make OUT readable if all parts are made: the process that made the last part was interrupted before it did'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand status" -l json -d 'Print one JSON object instead of text'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand status" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand doctor" -l limit -d 'For how many seconds a process of its own may look for GPUs' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand doctor" -l threads -d 'Threads that compute [default: as many as there are processors]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand doctor" -l memory -d 'Memory for buffers, as 512MiB or 4GiB [default: a quarter of this machine\'s]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand doctor" -l backend -d 'Where shards are encoded and decoded [default: on the processor, unless --devices or ZARRS_CUDA_DEVICES names a GPU]' -r -f -a "auto\t'On a GPU where one helps'
host\t'On the processor'
cuda\t'On a GPU, or fail'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand doctor" -l devices -d 'The GPUs to use, by number, as 0 or 0,1; or all' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand doctor" -l json -d 'Print one JSON object instead of text'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand bench" -l size -d 'About how large an array is' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand bench" -l rounds -d 'How often each is measured' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand bench" -l html -d 'Write a page with plots, which needs no network' -r -F
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand bench" -l threads -d 'Threads that compute [default: as many as there are processors]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand bench" -l memory -d 'Memory for buffers, as 512MiB or 4GiB [default: a quarter of this machine\'s]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand bench" -l backend -d 'Where shards are encoded and decoded [default: on the processor, unless --devices or ZARRS_CUDA_DEVICES names a GPU]' -r -f -a "auto\t'On a GPU where one helps'
host\t'On the processor'
cuda\t'On a GPU, or fail'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand bench" -l devices -d 'The GPUs to use, by number, as 0 or 0,1; or all' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand bench" -l json -d 'Print one JSON object instead of text'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand bench" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand completions" -l threads -d 'Threads that compute [default: as many as there are processors]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand completions" -l memory -d 'Memory for buffers, as 512MiB or 4GiB [default: a quarter of this machine\'s]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand completions" -l backend -d 'Where shards are encoded and decoded [default: on the processor, unless --devices or ZARRS_CUDA_DEVICES names a GPU]' -r -f -a "auto\t'On a GPU where one helps'
host\t'On the processor'
cuda\t'On a GPU, or fail'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand completions" -l devices -d 'The GPUs to use, by number, as 0 or 0,1; or all' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand completions" -l json -d 'Print one JSON object instead of text'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand completions" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand man" -l threads -d 'Threads that compute [default: as many as there are processors]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand man" -l memory -d 'Memory for buffers, as 512MiB or 4GiB [default: a quarter of this machine\'s]' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand man" -l backend -d 'Where shards are encoded and decoded [default: on the processor, unless --devices or ZARRS_CUDA_DEVICES names a GPU]' -r -f -a "auto\t'On a GPU where one helps'
host\t'On the processor'
cuda\t'On a GPU, or fail'"
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand man" -l devices -d 'The GPUs to use, by number, as 0 or 0,1; or all' -r
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand man" -l json -d 'Print one JSON object instead of text'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand man" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand help; and not __fish_seen_subcommand_from demo reencode reshard inspect explain verify recover compact consolidate stream pyramid plan status doctor bench completions man help" -f -a "demo" -d 'Re-encode a small MRI volume into a folder, verify it, and look at it'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand help; and not __fish_seen_subcommand_from demo reencode reshard inspect explain verify recover compact consolidate stream pyramid plan status doctor bench completions man help" -f -a "reencode" -d 'Re-encode any Zarr v2 or v3 array as a sharded v3 array'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand help; and not __fish_seen_subcommand_from demo reencode reshard inspect explain verify recover compact consolidate stream pyramid plan status doctor bench completions man help" -f -a "reshard" -d 'Move subchunks between chunks and shards without decoding them'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand help; and not __fish_seen_subcommand_from demo reencode reshard inspect explain verify recover compact consolidate stream pyramid plan status doctor bench completions man help" -f -a "inspect" -d 'Show what is in the shards of an array, and where'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand help; and not __fish_seen_subcommand_from demo reencode reshard inspect explain verify recover compact consolidate stream pyramid plan status doctor bench completions man help" -f -a "explain" -d 'Say what happens to the shards of an array, where, and why'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand help; and not __fish_seen_subcommand_from demo reencode reshard inspect explain verify recover compact consolidate stream pyramid plan status doctor bench completions man help" -f -a "verify" -d 'Find damaged shards and subchunks, or compare two arrays or groups bit for bit'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand help; and not __fish_seen_subcommand_from demo reencode reshard inspect explain verify recover compact consolidate stream pyramid plan status doctor bench completions man help" -f -a "recover" -d 'Repair shards whose last update was interrupted'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand help; and not __fish_seen_subcommand_from demo reencode reshard inspect explain verify recover compact consolidate stream pyramid plan status doctor bench completions man help" -f -a "compact" -d 'Store shards again without their unused bytes'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand help; and not __fish_seen_subcommand_from demo reencode reshard inspect explain verify recover compact consolidate stream pyramid plan status doctor bench completions man help" -f -a "consolidate" -d 'Pack subchunks that were written one by one into the shards of an array'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand help; and not __fish_seen_subcommand_from demo reencode reshard inspect explain verify recover compact consolidate stream pyramid plan status doctor bench completions man help" -f -a "stream" -d 'Append frames of raw bytes to a sharded array while they arrive'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand help; and not __fish_seen_subcommand_from demo reencode reshard inspect explain verify recover compact consolidate stream pyramid plan status doctor bench completions man help" -f -a "pyramid" -d 'Make the smaller levels of an image whose level 0 is there'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand help; and not __fish_seen_subcommand_from demo reencode reshard inspect explain verify recover compact consolidate stream pyramid plan status doctor bench completions man help" -f -a "plan" -d 'Propose shards and subchunks for how an array will be written and read'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand help; and not __fish_seen_subcommand_from demo reencode reshard inspect explain verify recover compact consolidate stream pyramid plan status doctor bench completions man help" -f -a "status" -d 'Tell which parts of an output are made, which --part makes'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand help; and not __fish_seen_subcommand_from demo reencode reshard inspect explain verify recover compact consolidate stream pyramid plan status doctor bench completions man help" -f -a "doctor" -d 'Say what this machine has, which chains would run where, and what a file system promises'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand help; and not __fish_seen_subcommand_from demo reencode reshard inspect explain verify recover compact consolidate stream pyramid plan status doctor bench completions man help" -f -a "bench" -d 'Compare this library with zarrs on this machine, as a table and as an HTML page'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand help; and not __fish_seen_subcommand_from demo reencode reshard inspect explain verify recover compact consolidate stream pyramid plan status doctor bench completions man help" -f -a "completions" -d 'Print completions for a shell'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand help; and not __fish_seen_subcommand_from demo reencode reshard inspect explain verify recover compact consolidate stream pyramid plan status doctor bench completions man help" -f -a "man" -d 'Write a manual page for each subcommand into a folder'
complete -c zarrs-cuda -n "__fish_zarrs_cuda_using_subcommand help; and not __fish_seen_subcommand_from demo reencode reshard inspect explain verify recover compact consolidate stream pyramid plan status doctor bench completions man help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
